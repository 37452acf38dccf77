"""The list of runs, the newest first, and the list of followed pull requests."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import urlencode

from aiohttp import web
from markupsafe import Markup

from kingdom.access.rights import Right
from kingdom.actions.listings import list_records, newest_runs, newest_runs_queries, records_query, runs_of_general
from kingdom.actions.overview import ACTIVE
from kingdom.court.followups.records import FOLLOWUPS, Followup, FollowupState
from kingdom.court.followups.summary import describe_followup, describe_rounds, summarize_followup
from kingdom.web.api.court import FollowupsQuery
from kingdom.web.api.runs import RunsQuery
from kingdom.web.pages.frame import open_page
from kingdom.web.pages.run_rows import row_html, run_row
from kingdom.web.pages.wording import ago
from kingdom.web.route import ApiCall
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus

# The groups of states that a person chooses among.
GROUPS: Mapping[str, Sequence[WorkflowStatus]] = {
    "All": (),
    "Open": ACTIVE,
    "Waiting": (WorkflowStatus.AWAITING, WorkflowStatus.PAUSED),
    "Failed": (WorkflowStatus.FAILED,),
    "Done": (WorkflowStatus.COMPLETED,),
    "Cancelled": (WorkflowStatus.CANCELLED,),
}

FOLLOWUP_GROUPS: Mapping[str, FollowupState | None] = {
    "All": None,
    "Open": FollowupState.OPEN,
    "Waiting": FollowupState.WAITING,
    "Ended": FollowupState.ENDED,
}


class RunsPageQuery(RunsQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which runs to show. `repository` is the id of a registered repository."""

    repository: str = ""

    def address(self, **changes: object) -> str:
        """Return the address of the list with some values of this query changed."""
        values = {"status": self.status, "general": self.general, "repository": self.repository} | changes
        return f"/runs?{urlencode({name: value for name, value in values.items() if value}, doseq=True)}"


async def show_runs(call: ApiCall) -> web.Response:
    """Show runs by state, General and repository, the newest first."""
    query: RunsPageQuery = call.query
    queries = newest_runs_queries(query.status, after=query.after, limit=query.limit)
    async with open_page(call, "/runs", list(queries.values())) as page:
        found = await newest_runs(page.transaction, query.status, after=query.after, limit=query.limit)
        runs = runs_of_general(found.records, query.general)
        shown = [run for run in runs if not query.repository or query.repository in run.git_ids()]
        rows = [run_row(run, call.visitor, _start(run, page.now)) for run in shown]
        return page.render(
            "runs.html",
            rows=[row_html(row, can_choose=Right.ACT in call.visitor.rights) for row in rows],
            generals=sorted({run.general for run in shown if run.general}),
            repositories=sorted({name for row in rows for name in row.repositories}),
            query=query,
            following=found.next,
            groups=GROUPS,
        )


def _start(run: Workflow, now: datetime) -> Markup:
    return ago(run.started_at, now) if run.started_at else Markup("created ") + ago(run.created_at, now)


async def show_followups(call: ApiCall) -> web.Response:
    """Show followed pull requests in the order of their names."""
    query: FollowupsQuery = call.query
    king = await asyncio.to_thread(call.context.king_context)
    first = records_query(FOLLOWUPS, state=query.state, after=query.after, limit=query.limit)
    async with open_page(call, "/runs", [first]) as page:
        found = await list_records(page.transaction, FOLLOWUPS, state=query.state, after=query.after, limit=query.limit)
        return page.render(
            "followups.html",
            followups=[summarize_followup(each, king.follow_policy) for each in found.read(Followup)],
            query=query,
            following=found.next,
            groups=FOLLOWUP_GROUPS,
            describe_followup=describe_followup,
            describe_rounds=describe_rounds,
        )

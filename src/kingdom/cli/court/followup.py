"""`kingdom followup …`: the pull requests that Kingdom follows until they are merged."""

from functools import partial
from typing import Annotated

import msgspec
import typer

from kingdom.actions.status import status_sources_of
from kingdom.bus.app import Application
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordQuery
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.command import CommandCall, Limit, command
from kingdom.cli.framework.json_result import array, one
from kingdom.clock import utc_now
from kingdom.court.followups.polls import PULL_POLLS
from kingdom.court.followups.records import FOLLOWUPS, Followup, FollowupState, end_followup, load_followup
from kingdom.court.followups.summary import (
    FollowPolicies,
    FollowupDetails,
    FollowupSummary,
    describe_followup,
    describe_rounds,
    summarize_followup,
)
from kingdom.court.questions import QUESTIONS
from kingdom.court.streams import TOPOLOGY
from kingdom.workflow.records import each_record, run_transaction

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List, show and stop the pull requests that Kingdom follows until they are merged.",
)
_APPLICATION = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(FOLLOWUPS, PULL_POLLS, QUESTIONS))
PullRequest = Annotated[
    str, typer.Argument(metavar="PULL_REQUEST", help="A followed pull request, such as acme/shop#7.")
]


@command(app, "list", result=array(FollowupSummary))
async def list_(
    call: CommandCall,
    *,
    every: Annotated[bool, typer.Option("--all", help="Also those that are no longer followed.")] = False,
    general: Annotated[str, typer.Option(help="Only those of this General.")] = "",
    limit: Limit = 50,
) -> None:
    """List the followed pull requests, the newest last, with the rounds that each has used and what waits.

    Example: kingdom followup list --all

    JSON: an array of {id, repo, number, branch, base, head, general, state, reason, question, rounds: {REASON: {used,
    allowed}}, waiting: {REASON: count}, failing: [name], cost_usd, budget_usd, task_id, workflow_id, created_at,
    pushed_at, ends_at, ended_at}; `question` is the id for `kingdom answer`.
    """
    states = [state for state in FollowupState if every or state is not FollowupState.ENDED]
    async with call.bus(_APPLICATION, create=False) as bus, bus.transaction() as transaction:
        records = [
            record
            for state in states
            async for record in each_record(transaction, RecordQuery(kind=FOLLOWUPS.name, state=state))
        ]
    found = [each for each in call.readable(records, Followup) if general in ("", each.general)]
    newest = sorted(found, key=lambda followup: followup.created_at)[-limit:]
    policies = _policies(call)
    shown = [summarize_followup(each, policies) for each in newest]
    if call.output.json:
        call.output.document(shown)
    elif shown:
        columns = ("pull request", "general", "state", "rounds", "usd", "until", "why")
        call.output.table(columns, [_row(followup) for followup in shown])
        if len(found) > limit:
            call.output.note_older("followups", limit)
    else:
        call.output.say(
            "No pull request is followed. A General follows its pull requests if general.yaml has `follow`."
        )


@command(app, "show", result=one(FollowupDetails))
async def show(call: CommandCall, pull_request: PullRequest) -> None:
    """Show a followed pull request: its branch, its last commit, its rounds and their cost.

    Example: kingdom followup show acme/shop#7

    JSON: the fields of `list`, and `poll_problem`.
    """
    async with call.bus(_APPLICATION, create=False) as bus, bus.transaction() as transaction:
        _, followup = await load_followup(transaction, pull_request)
        poll = await transaction.get(PULL_POLLS.name, followup.id)
    fields = msgspec.structs.asdict(summarize_followup(followup, _policies(call)))
    summary = FollowupDetails(**fields, poll_problem=poll.doc.get("problem", "") if poll else "")
    if call.output.json:
        call.output.document(summary)
        return
    texts = {
        "rounds": describe_rounds(summary),
        "waiting": describe_followup(summary),
        "failing": ", ".join(summary.failing),
        "cost_usd": f"{summary.cost_usd:.2f}",
    }
    fields = {**msgspec.structs.asdict(summary), **texts}
    rows = [(name.replace("_", " "), value) for name, value in fields.items() if value not in ("", None)]
    call.output.table(("followup", ""), rows)
    if summary.question:
        call.output.say(f"A person is asked whether to continue: kingdom answer {summary.question} continue")
    call.output.say(f"The timeline of its newest round: kingdom explain {summary.task_id}")


@command(app, "stop", result=one(FollowupSummary))
async def stop(
    call: CommandCall,
    pull_request: PullRequest,
    *,
    reason: Annotated[str, typer.Option(help="The reason, which `list` and `show` print.")] = "",
) -> None:
    """Stop following a pull request. A running round continues; no new round begins.

    Example: kingdom followup stop acme/shop#7

    JSON: the fields of `list`.
    """
    async with call.bus(_APPLICATION, create=False) as bus:
        stopped = await run_transaction(bus, partial(_stop, pull_request, reason, call.settings.actor))
    if call.output.json:
        call.output.document(summarize_followup(stopped, _policies(call)))
        return
    call.output.say(f"{stopped.id} is no longer followed: {stopped.reason}")


async def _stop(pull_request: str, reason: str, actor: str, transaction: Transaction) -> Followup:
    record, followup = await load_followup(transaction, pull_request)
    return await end_followup(transaction, record, followup, reason or f"{actor} stopped it", at=utc_now(), actor=actor)


def _row(followup: FollowupSummary) -> tuple[object, ...]:
    return (
        followup.id,
        followup.general,
        followup.state,
        describe_rounds(followup) or None,
        f"{followup.cost_usd:.2f}",
        followup.ended_at or followup.ends_at,
        describe_followup(followup),
    )


def _policies(call: CommandCall) -> FollowPolicies:
    return status_sources_of(call.settings, call.realm).king.follow_policy

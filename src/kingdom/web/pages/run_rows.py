"""Runs as rows of lists. Python computes the values, because functions that a template calls are slow."""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from markupsafe import Markup

from kingdom.access.rights import Visitor
from kingdom.actions.runs import describe_activity
from kingdom.web.pages.frame import render_part
from kingdom.web.pages.wording import StateWord, may, money, state_of
from kingdom.workflow.model.run.workflow import Workflow

# A row has about a kilobyte.
_ROWS_KEPT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list. `origin` names its General and repositories, `activity` says what it does or waits for."""

    id: str
    address: str
    name: str
    origin: str
    repositories: tuple[str, ...]
    state: StateWord
    activity: str
    reason: str
    works: str
    cost: str
    time: Markup
    can_act: bool


@lru_cache(maxsize=_ROWS_KEPT)
def row_html(row: RunRow, *, can_choose: bool) -> Markup:
    """Render a row of the list of runs. Open pages ask for the same rows again and again, so they are kept."""
    return render_part("run_row", row, can_choose)


def run_row(run: Workflow, visitor: Visitor, time: Markup) -> RunRow:
    """Return a run as a visitor sees it in a list, with its age or duration."""
    repositories = run.git_ids()
    return RunRow(
        id=run.id,
        address=f"/runs/{quote(run.id, safe='')}",
        name=run.name or run.id,
        origin="".join(f"{name} · " for name in (run.general, *repositories) if name),
        repositories=repositories,
        state=state_of(run),
        activity=describe_activity(run),
        reason=run.reason,
        works=f"{sum(work.is_finished for work in run.works)} of {len(run.works)}",
        cost=money(run.cost_usd),
        time=time,
        can_act=may(visitor, "act", run.general),
    )

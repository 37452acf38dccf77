"""Numbers, times and states in words, and whether a visitor may do something."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from markupsafe import Markup, escape

from kingdom.access.rights import Right, Visitor
from kingdom.text import format_age, printable
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus

_TAB_WIDTH = 4
# The word and the CSS class of each status. The class chooses a shape and a color that mean the same as the word.
_STATES: Mapping[WorkflowStatus, tuple[str, str]] = {
    WorkflowStatus.CREATED: ("Created", "idle"),
    WorkflowStatus.PREPARING: ("Preparing", "run"),
    WorkflowStatus.READY: ("Ready", "idle"),
    WorkflowStatus.RUNNING: ("Running", "run"),
    WorkflowStatus.PAUSED: ("Paused", "idle"),
    WorkflowStatus.AWAITING: ("Waiting", "ask"),
    WorkflowStatus.RESUMING: ("Resuming", "run"),
    WorkflowStatus.COMPLETED: ("Done", "good"),
    WorkflowStatus.FAILED: ("Failed", "bad"),
    WorkflowStatus.CANCELLED: ("Cancelled", "off"),
}


@dataclass(frozen=True, slots=True)
class StateWord:
    """A state as people see it: its word, and its CSS class."""

    word: str
    css_class: str


def state_of(workflow: Workflow) -> StateWord:
    """Return the state of a run."""
    if workflow.deleted_at:
        return StateWord("Deleted", "off")
    if workflow.parked_until and workflow.status is WorkflowStatus.AWAITING:
        return StateWord("Parked", "idle")
    return StateWord(*_STATES[workflow.status])


def money(amount: float | None) -> str:
    """Format an amount of US dollars with cents, or with four decimals if it is less than a cent."""
    if amount is None:
        return "-"
    return f"${amount:,.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"  # noqa: PLR2004 - a cent


def span(seconds: float | None) -> str:
    """Format a duration in one unit."""
    return "-" if seconds is None else format_age(seconds)


def indented(document: object) -> str:
    """Return a document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def visible(value: object) -> object:
    """Make control and bidirectional characters of a text visible, so that they cannot hide or reorder parts of it."""
    # A page calls this for each of its values, so the usual cases come first.
    if not isinstance(value, str) or value.isprintable() or isinstance(value, Markup):
        return value
    return printable(value.expandtabs(_TAB_WIDTH))


def coded(text: str) -> Markup:
    """Return a text of ours, in which names and commands between backquotes look like code."""
    parts = [escape(visible(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(visible(text))
    return Markup().join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def unbroken(text: str) -> Markup:
    """Return a text of ours, in which the sign for percent stays on the line of its number."""
    return Markup("&nbsp;%").join(escape(visible(part)) for part in text.split(" %"))


def ago(at: datetime, now: datetime) -> Markup:
    """Return how long ago something was, as an element that the script keeps current."""
    return _time(at, "ago", f"{span((now - at).total_seconds())} ago")


def left(at: datetime, now: datetime) -> Markup:
    """Return how much time is left, as an element that the script keeps current."""
    seconds = (at - now).total_seconds()
    return _time(at, "left", f"{span(seconds)} left" if seconds > 0 else "time is over")


def since(at: datetime, now: datetime) -> Markup:
    """Return how long something has lasted, as an element that the script keeps current."""
    return _time(at, "since", span((now - at).total_seconds()))


def clock(at: datetime) -> Markup:
    """Return a time of the day; the script shows it in the time zone of the reader."""
    return _time(at, "clock", f"{at:%H:%M:%S} UTC")


def may(visitor: Visitor, right: str, general: str = "") -> bool:
    """Return whether a visitor has a right for a General; the server checks it again with every act."""
    has_general = not visitor.generals or general in visitor.generals
    return Right(right) in visitor.rights and has_general


def _time(at: datetime, kind: str, words: str) -> Markup:
    # Our times and words need no escaping. `Markup.format` would take half of the time to render a long list.
    iso = at.astimezone(UTC).isoformat()
    title = f"{iso[:10]} {iso[11:19]} UTC"
    return Markup(f'<time datetime="{iso}" data-time="{kind}" title="{title}">{words}</time>')  # noqa: S704 - our words

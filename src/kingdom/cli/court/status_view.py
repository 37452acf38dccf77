"""The view of the court's state for a terminal."""

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.cli.framework.output import table
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.chamberlain.health import HealthLevel, describe_reason
from kingdom.court.documents import AssignmentStatus
from kingdom.court.followups.summary import describe_followup, describe_rounds
from kingdom.court.status import CourtStatus, count_noun, count_text
from kingdom.text import format_duration, printable

_COLORS: Mapping[str, str] = {
    HealthLevel.GREEN: "green",
    HealthLevel.YELLOW: "yellow",
    HealthLevel.ORANGE: "dark_orange",
    HealthLevel.RED: "bold red",
    TokenStatus.OK: "green",
    TokenStatus.WARNING: "yellow",
    TokenStatus.CRITICAL: "bold red",
}
_STAGES: Mapping[str, str] = {
    AssignmentStatus.IN_PROGRESS: "in progress",
    AssignmentStatus.NEEDS_HUMAN: "waiting for a person",
}
# How many followed pull requests are shown. `kingdom followup list` shows all.
_FOLLOWUPS_SHOWN = 10


def status_view(court_status: CourtStatus) -> RenderableType:
    """Return the facts, the roles, the machines, the followed pull requests, and what needs a person.

    Roles that never ran are only mentioned under what needs a person.
    """
    roles = [
        (each.role, _sign(each.silent_seconds, is_well=each.is_well))
        for each in court_status.roles
        if each.silent_seconds is not None
    ]
    hosts = [(host.name, host.status, f"{host.busy} of {host.slots}") for host in court_status.hosts]
    return Group(
        *facts(court_status),
        Text(),
        *([table(("role", "last heartbeat"), roles)] if roles else []),
        *([table(("machine", "status", "agents"), hosts)] if hosts else []),
        *_followups(court_status),
        *troubles(court_status),
    )


def facts(court_status: CourtStatus) -> Iterator[Text]:
    """Yield the main lines: health, money, slots, waiting events and assignments."""
    health, money = court_status.health, court_status.money
    age = f", read {format_duration(health.age_seconds)} ago" if health.age_seconds is not None else ""
    because = f" ({describe_reason(health.reason)})" if health.reason else ""
    held_back = f": {health.effect}" if health.effect else ""
    yield _fact("health", health.level, f"{because}{age}{held_back}")
    spent = f": ${money.spent:.2f} spent by Generals and ${money.set_aside:.2f} reserved of ${money.limit:.2f}"
    yield _fact("money today", money.status, spent)
    yield _fact("slots", "", ", ".join(f"{each.scope} {each.held} of {each.limit}" for each in court_status.slots))
    yield _fact("events", "", _events(court_status))
    for reason, count in court_status.waiting.by_reason.items():
        yield _fact("", "", f"  {count_text(count)} wait: {reason}" if count > 1 else f"  1 waits: {reason}")
    going_on = [f"{count_text(count)} {_STAGES.get(stage, stage)}" for stage, count in court_status.assignments.items()]
    yield _fact("assignments", "", ", ".join([*going_on, count_noun(court_status.open_asks, "open question")]))
    for parked in court_status.parked:
        yield _fact("parked", "", f"{parked.workflow}: {parked.reason}")


def _followups(court_status: CourtStatus) -> Iterator[RenderableType]:
    """Yield a table of the first followed pull requests, and how many more there are."""
    followups = court_status.followups
    columns = ("pull request", "general", "state", "rounds", "why")
    rows = [
        (each.id, each.general, each.state, describe_rounds(each), describe_followup(each))
        for each in followups[:_FOLLOWUPS_SHOWN]
    ]
    if rows:
        yield table(columns, rows)
    if hidden := len(followups) - len(rows):
        yield Text(f"{hidden} more: kingdom followup list")


def troubles(court_status: CourtStatus) -> Iterator[Text]:
    """Yield the lines about what needs a person."""
    if not court_status.troubles:
        yield Text("Nothing needs a person.", style="green")
    for trouble in court_status.troubles:
        yield Text.assemble(("! ", "bold red"), printable(trouble.what), ("  → ", "dim"), (trouble.command, "bold"))


def _events(court_status: CourtStatus) -> str:
    by_priority = ", ".join(f"{count_text(count)} {name}" for name, count in court_status.waiting.by_priority.items())
    waiting = f"{count_text(court_status.waiting.count)} waiting{f' ({by_priority})' if by_priority else ''}"
    return f"{count_text(court_status.undecided)} undecided, {waiting}"


def _fact(name: str, level: str, words: str) -> Text:
    return Text.assemble((f"{name:<13}", "bold"), (level, _COLORS.get(level, "")), printable(words))


def _sign(silent_seconds: float, *, is_well: bool) -> Text:
    return Text(f"{format_duration(silent_seconds)} ago", style="green" if is_well else "red")

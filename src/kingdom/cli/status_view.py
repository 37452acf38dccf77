"""How the court stands, for a terminal."""

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.cli.output import ago, table
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.chamberlain.health import Level
from kingdom.court.documents import AssignmentStatus
from kingdom.court.standing import Standing, counted, many
from kingdom.text import printable

_COLOURS: Mapping[str, str] = {
    Level.GREEN: "green",
    Level.YELLOW: "yellow",
    Level.ORANGE: "dark_orange",
    Level.RED: "bold red",
    TokenStatus.OK: "green",
    TokenStatus.WARNING: "yellow",
    TokenStatus.CRITICAL: "bold red",
}
_STAGES: Mapping[str, str] = {
    AssignmentStatus.IN_PROGRESS: "in progress",
    AssignmentStatus.NEEDS_HUMAN: "waiting for a person",
}
_HOLDS_BACK: Mapping[str, str] = {
    Level.YELLOW: "only what is urgent or has waited for hours begins",
    Level.ORANGE: "nothing new begins",
    Level.RED: "nothing new begins",
}


def status_view(standing: Standing) -> RenderableType:
    """Return all of it: the facts, the roles and the machines, and last what needs a person.

    Roles that never ran are named there only, in one line.
    """
    roles = [
        (each.role, _sign(each.silent_seconds, is_well=each.is_well))
        for each in standing.roles
        if each.silent_seconds is not None
    ]
    hosts = [(host.name, host.status, f"{host.busy} of {host.slots}") for host in standing.hosts]
    return Group(
        *facts(standing),
        Text(),
        *([table(("role", "last sign of life"), roles)] if roles else []),
        *([table(("machine", "status", "agents"), hosts)] if hosts else []),
        *troubles(standing),
    )


def facts(standing: Standing) -> Iterator[Text]:
    """Yield the lines that tell the most: health, money, slots, what waits and what goes on."""
    health, money = standing.health, standing.money
    age = f", read {ago(health.age_seconds)} ago" if health.age_seconds is not None else ""
    because = f" ({health.reason})" if health.reason else ""
    held_back = f": {_HOLDS_BACK[health.level]}{health.by_setting}" if health.level in _HOLDS_BACK else ""
    yield _fact("health", health.level, f"{because}{age}{held_back}")
    spent = f": ${money.spent:.2f} spent by Generals and ${money.set_aside:.2f} set aside of ${money.limit:.2f}"
    yield _fact("money today", money.status, spent)
    yield _fact("slots", "", ", ".join(f"{each.scope} {each.held} of {each.limit}" for each in standing.slots))
    yield _fact("events", "", _events(standing))
    for reason, count in standing.waiting.by_reason.items():
        yield _fact("", "", f"  {counted(count)} wait for {reason}" if count > 1 else f"  1 waits for {reason}")
    going_on = [f"{counted(count)} {_STAGES.get(stage, stage)}" for stage, count in standing.assignments.items()]
    yield _fact("assignments", "", ", ".join([*going_on, many(standing.open_asks, "open question")]))
    for parked in standing.parked:
        yield _fact("parked", "", f"{parked.workflow}: {parked.reason}")


def troubles(standing: Standing) -> Iterator[Text]:
    """Yield what needs a person, or that nothing does."""
    if not standing.troubles:
        yield Text("Nothing needs a person.", style="green")
    for trouble in standing.troubles:
        yield Text.assemble(("! ", "bold red"), printable(trouble.what), ("  → ", "dim"), (trouble.command, "bold"))


def _events(standing: Standing) -> str:
    by_priority = ", ".join(f"{counted(count)} {name}" for name, count in standing.waiting.by_priority.items())
    waiting = f"{counted(standing.waiting.count)} waiting{f' ({by_priority})' if by_priority else ''}"
    return f"{counted(standing.undecided)} undecided, {waiting}"


def _fact(name: str, level: str, words: str) -> Text:
    return Text.assemble((f"{name:<13}", "bold"), (level, _COLOURS.get(level, "")), printable(words))


def _sign(silent_seconds: float, *, is_well: bool) -> Text:
    return Text(f"{ago(silent_seconds)} ago", style="green" if is_well else "red")

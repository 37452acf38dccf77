"""The views of the demo for a terminal."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from kingdom.cli.framework.output import table
from kingdom.court.heartbeat import ROLES
from kingdom.court.questions import HumanQuestion
from kingdom.demo.narration import NarrationLine, Tone
from kingdom.demo.report import DemoReport
from kingdom.demo.scenario import TICKET
from kingdom.demo.store_watcher import DemoState
from kingdom.text import format_duration, printable
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkStatus

_STYLES: Mapping[Tone, str] = {
    Tone.PLAIN: "",
    Tone.WORDS: "italic cyan",
    Tone.GOOD: "green",
    Tone.BAD: "bold red",
    Tone.PERSON: "bold yellow",
}
_MARKS: Mapping[WorkStatus, tuple[str, str]] = {
    WorkStatus.COMPLETED: ("✓", "green"),
    WorkStatus.RUNNING: ("▸", "cyan"),
    WorkStatus.FAILED: ("✗", "red"),
    WorkStatus.PAUSED: ("‖", "yellow"),
    WorkStatus.CANCELLED: ("✗", "red"),
}
_WAITING = ("·", "dim")
_WHO_WIDTH = 12
# The lines of the screen for the title, its words, the roles, and the frame of the table.
_FIXED_HEIGHT = 10
_LINES_MIN = 4
_COMMAND_WIDTH = 56
# A role counts as silent after this time. In the demo each role sends a heartbeat every second.
_SILENT_SECONDS = 3.0


def screen_view(
    title: str, words: str, lines: Iterable[NarrationLine], state: DemoState, *, height: int
) -> RenderableType:
    """Return the screen: the current step, the last lines of the narration, and the current state."""
    room = max(height - _FIXED_HEIGHT - len(state.runs), _LINES_MIN)
    shown = [line_view(line) for line in lines][-room:]
    return Group(
        Rule(Text(title, style="bold"), align="left"),
        Text(words, style="dim"),
        *shown,
        *(Text() for _ in range(room - len(shown))),
        _runs(state),
        _roles(state),
    )


def line_view(line: NarrationLine) -> Text:
    """Return a line of the narration."""
    who, what = printable(f"{line.who:<{_WHO_WIDTH}}"), printable(line.what)
    return Text.assemble((who, "bold"), (what, _STYLES[line.tone]), no_wrap=True, overflow="ellipsis")


def question_view(ask: HumanQuestion, default: str, seconds: float) -> RenderableType:
    """Return the question of an agent, and what happens without an answer."""
    choices = f" ({' / '.join(ask.choices)}, or your own words)" if ask.choices else ""
    return Group(
        Rule(Text(f"{ask.general} asks you", style="bold yellow"), align="left"),
        Text(printable(f"{ask.text}{choices}"), style="bold"),
        Text(
            f"In {seconds:g} s the demo answers “{default}”. In another terminal this is `kingdom inbox`.", style="dim"
        ),
    )


def end_view(report: DemoReport, directory: Path | None) -> RenderableType:
    """Return the result, where the files are, and what to do next. If `directory` is None, the files are removed."""
    kills = ", ".join(f"{kill.what} (back after {kill.back_after_seconds:g} s)" for kill in report.kills)
    outside = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in report.outside.items())
    verdict = "Nothing was lost, and nothing was done twice." if report.ok else "; ".join(report.findings)
    where = f"The files are in: cd {directory}" if directory else "With --keep the files stay, so you can look at them:"
    facts = (
        ("assignments", ", ".join(f"{each.general} {each.status}" for each in report.assignments)),
        ("killed", kills),
        ("rolled back to", report.resumed_from),
        ("done outside", outside),
        ("cost", f"${report.cost_usd:.2f}, according to the agent's script"),
    )
    return Group(
        Text(printable(verdict), style="bold green" if report.ok else "bold red"),
        *(_fact(name, words) for name, words in facts),
        Text(),
        Text(where, style="bold"),
        *(_fact(f"cat {place.path}", place.what, width=_COMMAND_WIDTH) for place in report.places),
        *(_fact(command, words, width=_COMMAND_WIDTH) for command, words in _more_commands(report) if directory),
        Text(),
        Text("What to do next", style="bold"),
        *(_fact(command, words, width=_COMMAND_WIDTH) for command, words in _NEXT),
    )


_NEXT = (
    ("kingdom init", "create your own realm, with a General to start from"),
    ("kingdom doctor", "check this machine, and say how to fix what is wrong"),
    ("kingdom up", "run it"),
)


def _more_commands(report: DemoReport) -> Iterator[tuple[str, str]]:
    """Yield the command that shows the timeline of the ticket, whose agent was killed."""
    for each in report.assignments:
        if each.general == TICKET:
            yield f"kingdom explain {each.assignment_id}", "its timeline, including the kills"


def _runs(state: DemoState) -> RenderableType:
    status = {each.workflow_id: each.status for each in state.assignments if not each.root}
    rows = [
        (
            run.general,
            status.get(run.id, ""),
            _works(run),
            len(run.checkpoints),
            f"${run.cost_usd:.2f}",
        )
        for run in state.runs
    ]
    return table(("general", "assignment", "works", "checkpoints", "cost"), rows)


def _works(run: Workflow) -> Text:
    parts: list[tuple[str, str]] = []
    for work in run.works:
        mark, style = _MARKS.get(work.status, _WAITING)
        parts.append((f"{mark} {work.definition.name}  ", style))
    return Text.assemble(*parts)


def _roles(state: DemoState) -> Text:
    shown = Text()
    for role in ROLES:
        sign = state.heartbeats.get(role)
        silent = (state.at - sign).total_seconds() if sign else None
        if silent is None:
            shown.append(f"○ {role}  ", "dim")
        elif silent > _SILENT_SECONDS:
            shown.append(f"✗ {role} silent for {format_duration(silent)}  ", "red")
        else:
            shown.append(f"● {role}  ", "green")
    return shown


def _fact(name: str, words: str, *, width: int = 14) -> Text:
    return Text.assemble((f"  {name:<{width}} ", "bold"), printable(words))

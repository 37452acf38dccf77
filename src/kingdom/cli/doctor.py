"""`kingdom doctor`: what is wrong here, and the one line that puts it right."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kingdom.bus.logs import configure_logs
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.shape import one
from kingdom.doctor.check import CheckReport, Status, run_checks
from kingdom.doctor.checks import all_checks
from kingdom.doctor.context_reader import read_context
from kingdom.sentence import printable

app = typer.Typer(add_completion=False)
_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; `ok` unless something does not work."""

    ok: bool
    checks: list[CheckReport]


@command(app, "doctor", answer=one(Diagnosis))
async def doctor(
    call: Call,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no server outside, such as GitHub or Slack.")] = False,
) -> int | None:
    """Look for everything that can be wrong here, and tell the one line that puts it right.

    It works without kingdom.yaml, with a broken one and without a store; it leaves everything as it is, and never shows
    a secret.

    Exit codes: 0 all is well or could be better, 1 something does not work.

    Example: kingdom doctor

    Example: kingdom doctor --config kingdom.yaml --offline --json

    JSON: {ok, checks: an array of {name, status, found, fix, seconds}}; status is ok, warn, fail or skipped, and fix is
    empty where nothing needs one.
    """
    configure_logs(json=True, level=logging.CRITICAL)
    output = call.output
    is_screen = output.console.is_terminal and not output.json
    with output.console.status("Looking …") if is_screen else nullcontext():
        context = await read_context(**call.given)
        findings = await run_checks(all_checks(), context, offline=offline)
    failed = any(finding.status is Status.FAIL for finding in findings)
    if output.json:
        output.document(Diagnosis(ok=not failed, checks=findings))
    else:
        output.console.print(doctor_view(findings))
    return exit_code.FAILED if failed else None


def doctor_view(findings: Sequence[CheckReport]) -> RenderableType:
    """Return what was found, for a terminal: one line each, a second one with the fix, and a sentence at the end."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for finding in findings:
        if finding.status is Status.SKIPPED:
            continue
        # What was found may have brackets in it, which are no markup.
        found = Text(printable(finding.found))
        lines.add_row(Text(finding.status, style=_COLOURS[finding.status]), Text(finding.name), found)
        if finding.fix:
            lines.add_row("", "", Text.assemble(("→ ", "dim"), (printable(finding.fix), "bold")))
    return Group(lines, *_not_looked_at(findings), Text(), _sum(findings))


def _not_looked_at(findings: Sequence[CheckReport]) -> Iterator[Text]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        if finding.status is Status.SKIPPED:
            reasons[finding.found].append(finding.name)
    for reason, names in reasons.items():
        yield Text(printable(f"skipped {', '.join(names)}: {reason}"), style="dim")


def _sum(findings: Sequence[CheckReport]) -> Text:
    count = {status: sum(finding.status is status for finding in findings) for status in Status}
    if count[Status.FAIL]:
        return Text(
            f"{_many(count[Status.FAIL], 'problem')}, {_many(count[Status.WARN], 'warning')}.", style="bold red"
        )
    if count[Status.WARN]:
        return Text(f"Everything works; {_many(count[Status.WARN], 'thing')} could be better.", style="yellow")
    return Text("All is well.", style="green")


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""`kingdom doctor`: check this machine and realm."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.doctor.check import CheckReport, Status, run_checks
from kingdom.doctor.checks import all_checks
from kingdom.doctor.context_reader import read_context
from kingdom.log_output import configure_logs
from kingdom.text import printable
from kingdom.views.diagnosis import Diagnosis

app = typer.Typer(add_completion=False)
_COLORS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


@command(app, "doctor", result=one(Diagnosis))
async def doctor(
    call: CommandCall,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact GitHub, Slack or other servers.")] = False,
) -> int | None:
    """Check this machine and realm, and say how to fix what is wrong.

    It also works without a store, and if kingdom.yaml is missing or broken. It changes nothing and never shows a
    secret.

    Exit codes: 0 everything works, perhaps with warnings; 1 something does not work.

    Example: kingdom doctor

    Example: kingdom doctor --config kingdom.yaml --offline --json

    JSON: {ok, checks: an array of {name, status, found, fix, seconds}}; status is ok, warn, fail or skipped, and fix is
    empty where nothing needs fixing.
    """
    configure_logs(json=True, level=logging.CRITICAL)
    output = call.output
    is_screen = output.console.is_terminal and not output.json
    with output.console.status("Checking …") if is_screen else nullcontext():
        context = await read_context(**call.given)
        findings = await run_checks(all_checks(), context, offline=offline)
    failed = any(finding.status is Status.FAIL for finding in findings)
    if output.json:
        output.document(Diagnosis(ok=not failed, checks=findings))
    else:
        output.console.print(doctor_view(findings))
    return exit_code.FAILED if failed else None


def doctor_view(findings: Sequence[CheckReport]) -> RenderableType:
    """Return the findings for a terminal: one line each, a second line if there is a fix, and a summary at the end."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for finding in findings:
        if finding.status is Status.SKIPPED:
            continue
        # A Text does not read brackets in a finding as markup.
        found = Text(printable(finding.found))
        lines.add_row(Text(finding.status, style=_COLORS[finding.status]), Text(finding.name), found)
        if finding.fix:
            lines.add_row("", "", Text.assemble(("→ ", "dim"), (printable(finding.fix), "bold")))
    return Group(lines, *_skipped_lines(findings), Text(), _summary(findings))


def _skipped_lines(findings: Sequence[CheckReport]) -> Iterator[Text]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        if finding.status is Status.SKIPPED:
            reasons[finding.found].append(finding.name)
    for reason, names in reasons.items():
        yield Text(printable(f"skipped {', '.join(names)}: {reason}"), style="dim")


def _summary(findings: Sequence[CheckReport]) -> Text:
    count = {status: sum(finding.status is status for finding in findings) for status in Status}
    if count[Status.FAIL]:
        return Text(
            f"{_many(count[Status.FAIL], 'problem')}, {_many(count[Status.WARN], 'warning')}.", style="bold red"
        )
    if count[Status.WARN]:
        return Text(f"Everything works; {_many(count[Status.WARN], 'thing')} could be better.", style="yellow")
    return Text("Everything works.", style="green")


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""`kingdom bus verify`: kill and check, in a throwaway schema or directory of the user's own store."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.output import Advance
from kingdom.cli.shape import one
from kingdom.verify import TrialReport
from kingdom.verify import verify as torment

app = typer.Typer()
_TICK_SECONDS = 0.25


class Fault(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that was done to it, in seconds after the first action."""

    at_seconds: float
    kind: str
    detail: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a trial has shown; `events`, `actions` and `findings` are counts by name."""

    ok: bool
    seed: int
    seconds: float
    drained_seconds: float
    events: dict[str, int]
    actions: dict[str, int]
    faults: list[Fault]
    findings: dict[str, int]
    details: list[str]


@command(app, "verify", answer=one(Verdict))
async def verify(
    call: Call,
    *,
    seconds: Annotated[float, typer.Option(min=1, help="How long to torment it; draining comes on top.")] = 10.0,
    seed: Annotated[int | None, typer.Option(help="Repeat the choices of an earlier run.")] = None,
    history: Annotated[Path | None, typer.Option(help="Keep every recorded action in this new directory.")] = None,
) -> int | None:
    """Run publishers and workers in a throwaway schema or directory, kill and stop them, and check what happened.

    Nothing else in the store is touched. The exit code is 1 if anything was lost, repeated, reordered or stuck.

    Example: kingdom bus verify --seconds 30 --seed 7

    JSON: {ok, seed, seconds, drainedSeconds, events, actions, faults: [{atSeconds, kind, detail}], findings, details};
    events, actions and findings are counts by name, details the first findings in words.
    """
    if history is not None:
        try:
            history.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{history} cannot be made: {error.strerror}.") from error
    with call.output.progress(
        f"Tormenting for {seconds:g} s, then draining", round(seconds / _TICK_SECONDS)
    ) as advance:
        ticking = asyncio.create_task(_tick(advance))
        try:
            report = await torment(call.settings.direct_url, seconds=seconds, seed=seed, directory=history)
        finally:
            ticking.cancel()
    if call.output.json:
        call.output.document(_verdict(report))
    else:
        _show(call, report)
    return None if report.ok else exit_code.FAILED


async def _tick(advance: Advance) -> None:
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        advance()


def _verdict(report: TrialReport) -> Verdict:
    return Verdict(
        ok=report.ok,
        seed=report.seed,
        seconds=report.seconds,
        drained_seconds=report.drained_seconds,
        events=dict(report.statuses),
        actions=dict(report.actions),
        faults=[Fault(at_seconds=each.at_seconds, kind=each.kind, detail=each.detail) for each in report.faults],
        findings=report.violations_by_kind,
        details=_details(report),
    )


def _show(call: Call, report: TrialReport) -> None:
    output = call.output
    output.table(("at", "fault", "what"), [(f"{f.at_seconds:.2f} s", f.kind, f.detail) for f in report.faults])
    output.table(("recorded action", "times"), report.actions.items())
    output.table(("checked", "found"), report.violations_by_kind.items())
    output.say(*_details(report))
    events = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
    output.say(
        f"{'Passed' if report.ok else 'FAILED'}: {len(report.faults)} faults in {report.seconds:.0f} s, drained in"
        f" {report.drained_seconds:.1f} s; events: {events or 'none'}. Repeat the choices with --seed {report.seed}."
    )


def _details(report: TrialReport) -> list[str]:
    return [f"{each.kind.value}: {each.subject}: {each.detail}" for each in report.violations[:20]]

"""`kingdom bus verify`: inject faults and check the history, in a temporary part of the user's own store."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.long_running import BY_SIGNAL, cancel_on_signal
from kingdom.cli.framework.output import AdvanceProgress
from kingdom.verify import TrialReport
from kingdom.verify import verify as run_verification
from kingdom.views.bus import ListedFault, VerifyResult

app = typer.Typer()
# The progress bar advances once in this time.
_TICK_SECONDS = 0.25


@command(app, "verify", result=one(VerifyResult))
async def verify(
    call: CommandCall,
    *,
    seconds: Annotated[float, typer.Option(min=1, help="How long to inject faults; draining takes extra time.")] = 10.0,
    seed: Annotated[int | None, typer.Option(help="Repeat the random choices of an earlier run.")] = None,
    history: Annotated[Path | None, typer.Option(help="Write every recorded action to this new directory.")] = None,
) -> int | None:
    """Run publishers and workers in a temporary schema or directory, kill and stop them, and check the history.

    Nothing else in the store changes. The exit code is 1 if anything was lost, repeated, reordered or stuck.

    Example: kingdom bus verify --seconds 30 --seed 7

    JSON: {ok, seed, seconds, drainedSeconds, events, actions, faults: [{atSeconds, kind, detail}], findings, details};
    events, actions and findings are counts by name, details the first findings as sentences.
    """
    if history is not None:
        try:
            history.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{history} cannot be created: {error.strerror}.") from error
    received = cancel_on_signal()
    try:
        report = await _verify_with_progress(call, seconds=seconds, seed=seed, history=history)
    except asyncio.CancelledError:
        if not received:
            raise
        call.output.note("Stopped. Nothing is left in the store.")
        return BY_SIGNAL + received[0]
    if call.output.json:
        call.output.document(_to_result(report))
    else:
        _show(call, report)
    return None if report.ok else exit_code.FAILED


async def _verify_with_progress(
    call: CommandCall, *, seconds: float, seed: int | None, history: Path | None
) -> TrialReport:
    with call.output.progress(
        f"Injecting faults for {seconds:g} s, then draining", round(seconds / _TICK_SECONDS)
    ) as advance:
        ticking = asyncio.create_task(_advance_forever(advance))
        try:
            return await run_verification(call.settings.direct_url, seconds=seconds, seed=seed, directory=history)
        finally:
            ticking.cancel()


async def _advance_forever(advance: AdvanceProgress) -> None:
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        advance()


def _to_result(report: TrialReport) -> VerifyResult:
    return VerifyResult(
        ok=report.ok,
        seed=report.seed,
        seconds=report.seconds,
        drained_seconds=report.drained_seconds,
        events=dict(report.statuses),
        actions=dict(report.actions),
        faults=[ListedFault(at_seconds=each.at_seconds, kind=each.kind, detail=each.detail) for each in report.faults],
        findings=report.violations_by_kind,
        details=_details(report),
    )


def _show(call: CommandCall, report: TrialReport) -> None:
    output = call.output
    output.table(("at", "fault", "what"), [(f"{f.at_seconds:.2f} s", f.kind, f.detail) for f in report.faults])
    output.table(("recorded action", "times"), report.actions.items())
    output.table(("checked", "found"), report.violations_by_kind.items())
    output.say(*_details(report))
    events = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
    output.say(
        f"{'Passed' if report.ok else 'FAILED'}: {len(report.faults)} faults in {report.seconds:.0f} s, drained in"
        f" {report.drained_seconds:.1f} s; events: {events or 'none'}. Repeat it with --seed {report.seed}."
    )


def _details(report: TrialReport) -> list[str]:
    return [f"{each.kind.value}: {each.subject}: {each.detail}" for each in report.violations[:20]]

"""Run checks: each inspects one thing within a time limit and returns a result."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from kingdom.doctor.context import CheckContext
from kingdom.errors import KingdomError

LIMIT = timedelta(seconds=15)
_T = TypeVar("_T")


class Status(StrEnum):
    """The severity of a result; FAIL means that something does not work or a guarantee does not hold."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class CheckResult(NamedTuple):
    """The result of a check; `fix` is one line for the user, empty if nothing needs fixing."""

    status: Status
    found: str
    fix: str = ""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """A result with the name and the duration of its check."""

    name: str
    status: Status
    found: str
    fix: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of one thing; `remedy` is the fix to show if the check itself fails or times out."""

    name: str
    run: Callable[[CheckContext], Awaitable[CheckResult]]
    remedy: str
    limit: timedelta = LIMIT
    # The check calls an external server, so `--offline` skips it.
    needs_network: bool = False


def ok(found: str) -> CheckResult:
    """Return a result without a problem."""
    return CheckResult(Status.OK, found)


def warn(found: str, fix: str) -> CheckResult:
    """Return a result for something that works, but could be better."""
    return CheckResult(Status.WARN, found, fix)


def fail(found: str, fix: str) -> CheckResult:
    """Return a result for something that does not work."""
    return CheckResult(Status.FAIL, found, fix)


def skipped(why: str) -> CheckResult:
    """Return the result of a check that does not apply here."""
    return CheckResult(Status.SKIPPED, why)


async def run_checks(checks: Sequence[Check], context: CheckContext, *, offline: bool = False) -> list[CheckReport]:
    """Run all checks concurrently, each within its own time limit; return the reports in the order of the checks."""

    async def one(check: Check) -> CheckReport:
        began = time.monotonic()
        if offline and check.needs_network:
            result = skipped("--offline calls no external server")
        else:
            result = await _run_check(check, context)
        seconds = round(time.monotonic() - began, 3)
        found, fix = " ".join(result.found.split()), " ".join(result.fix.split())
        return CheckReport(name=check.name, status=result.status, found=found, fix=fix, seconds=seconds)

    return list(await asyncio.gather(*map(one, checks)))


async def run_in_thread(function: Callable[[], _T]) -> _T:
    """Run blocking disk access in a daemon thread, so that a dead disk does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def resolve(action: Callable[[], None]) -> None:
        # The loop may be closed after a timeout.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if future.cancelled() else action())

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the caller receives it
            resolve(partial(future.set_exception, error))
        else:
            resolve(partial(future.set_result, result))

    threading.Thread(target=run, name="kingdom-doctor", daemon=True).start()
    return await future


async def _run_check(check: Check, context: CheckContext) -> CheckResult:
    try:
        async with asyncio.timeout(check.limit.total_seconds()):
            return await check.run(context)
    except TimeoutError:
        return fail(f"this check took longer than {check.limit.total_seconds():g} s", check.remedy)
    except (KingdomError, OSError) as error:
        return fail(str(error), check.remedy)
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the results of the others
        return fail(f"this check failed: {type(error).__name__}: {error}", check.remedy)

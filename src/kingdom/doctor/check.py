"""One check: what it looks at, how long it may take, and what it found."""

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

from kingdom.doctor.patient import Patient
from kingdom.errors import KingdomError

LIMIT = timedelta(seconds=15)
_T = TypeVar("_T")


class Status(StrEnum):
    """How bad it is: with a failure something does not work or a promise cannot be kept."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Verdict(NamedTuple):
    """What a look brought; `fix` is one line for a person, empty where nothing needs one."""

    status: Status
    found: str
    fix: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with the name of its check and how long the look took."""

    name: str
    status: Status
    found: str
    fix: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A look at one thing; `remedy` is the fix where the look itself fails or takes too long."""

    name: str
    look: Callable[[Patient], Awaitable[Verdict]]
    remedy: str
    limit: timedelta = LIMIT
    # Such a look asks a server of somebody else.
    asks_outside: bool = False


def ok(found: str) -> Verdict:
    """Return that all is well."""
    return Verdict(Status.OK, found)


def warn(found: str, fix: str) -> Verdict:
    """Return that something works, but not as well as it could."""
    return Verdict(Status.WARN, found, fix)


def fail(found: str, fix: str) -> Verdict:
    """Return that something does not work."""
    return Verdict(Status.FAIL, found, fix)


def skipped(why: str) -> Verdict:
    """Return that there was nothing to look at."""
    return Verdict(Status.SKIPPED, why)


async def examine(checks: Sequence[Check], patient: Patient, *, offline: bool = False) -> list[Finding]:
    """Run every check at the same time, each within its own limit; returns what they found in their order."""

    async def one(check: Check) -> Finding:
        began = time.monotonic()
        if offline and check.asks_outside:
            verdict = skipped("nobody outside is asked with --offline")
        else:
            verdict = await _looked(check, patient)
        seconds = round(time.monotonic() - began, 3)
        found, fix = " ".join(verdict.found.split()), " ".join(verdict.fix.split())
        return Finding(name=check.name, status=verdict.status, found=found, fix=fix, seconds=seconds)

    return list(await asyncio.gather(*map(one, checks)))


async def in_thread(look: Callable[[], _T]) -> _T:
    """Run what may wait for a disk in a thread that nobody has to wait for: a dead disk must not keep us alive."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_T] = loop.create_future()

    def tell(act: Callable[[], None]) -> None:
        # Who waits no more may be gone with the loop.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.cancelled() else act())

    def run() -> None:
        try:
            result = look()
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            tell(partial(answer.set_exception, error))
        else:
            tell(partial(answer.set_result, result))

    threading.Thread(target=run, name="kingdom-doctor", daemon=True).start()
    return await answer


async def _looked(check: Check, patient: Patient) -> Verdict:
    try:
        async with asyncio.timeout(check.limit.total_seconds()):
            return await check.look(patient)
    except TimeoutError:
        return fail(f"this look took longer than {check.limit.total_seconds():g} s", check.remedy)
    except (KingdomError, OSError) as error:
        return fail(str(error), check.remedy)
    except Exception as error:  # noqa: BLE001 - one broken look must not hide what the others found
        return fail(f"this look failed: {type(error).__name__}: {error}", check.remedy)

import asyncio
from datetime import timedelta

import pytest

from kingdom.doctor.check import Check, CheckResult, ok, run_checks, run_in_thread
from kingdom.doctor.context import CheckContext
from kingdom.errors import Unavailable
from kingdom.settings import Settings

CONTEXT = CheckContext(settings=Settings(database_url="file:realm"))


async def test_all_checks_run_at_the_same_time() -> None:
    together = asyncio.Barrier(3)

    async def check(_: CheckContext) -> CheckResult:
        await together.wait()
        return ok("met the others")

    checks = [Check(name=str(number), run=check, remedy="none") for number in range(3)]
    reports = await run_checks(checks, CONTEXT)
    assert [(report.name, report.status) for report in reports] == [("0", "ok"), ("1", "ok"), ("2", "ok")]


async def test_a_check_that_fails_or_hangs_hides_no_other() -> None:
    async def hang(_: CheckContext) -> CheckResult:
        await asyncio.Event().wait()
        return ok("never")

    async def break_down(_: CheckContext) -> CheckResult:
        raise ZeroDivisionError("by nobody's\nfault")

    async def refuse(_: CheckContext) -> CheckResult:
        raise Unavailable("it is away")

    async def be_well(_: CheckContext) -> CheckResult:
        return ok("here")

    runs = {"hang": hang, "break": break_down, "refuse": refuse, "well": be_well}
    limit = timedelta(milliseconds=100)
    checks = [Check(name=name, run=run, remedy="do this", limit=limit) for name, run in runs.items()]
    found = {report.name: (report.status, report.found, report.fix) for report in await run_checks(checks, CONTEXT)}
    assert found == {
        "hang": ("fail", "this check took longer than 0.1 s", "do this"),
        "break": ("fail", "this check failed: ZeroDivisionError: by nobody's fault", "do this"),
        "refuse": ("fail", "it is away", "do this"),
        "well": ("ok", "here", ""),
    }


async def test_a_value_that_several_checks_need_is_computed_once() -> None:
    context = CheckContext(settings=Settings(database_url="file:realm"))
    asked: list[str] = []

    async def ask() -> str:
        asked.append("asked")
        await asyncio.sleep(0)
        return "told"

    assert await asyncio.gather(*(context.compute_once("it", ask) for _ in range(3))) == ["told"] * 3
    assert asked == ["asked"]


async def test_a_thread_returns_its_value_or_raises_its_error() -> None:
    assert await run_in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(lambda: 1 // 0)

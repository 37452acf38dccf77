import asyncio
from datetime import timedelta

import pytest

from kingdom.doctor.check import Check, Verdict, examine, in_thread, ok
from kingdom.doctor.patient import Patient
from kingdom.errors import Unavailable
from kingdom.settings import Settings

PATIENT = Patient(settings=Settings(database_url="file:realm"))


async def test_all_looks_are_taken_at_the_same_time() -> None:
    together = asyncio.Barrier(3)

    async def look(_: Patient) -> Verdict:
        await together.wait()
        return ok("met the others")

    checks = [Check(name=str(number), look=look, remedy="none") for number in range(3)]
    findings = await examine(checks, PATIENT)
    assert [(finding.name, finding.status) for finding in findings] == [("0", "ok"), ("1", "ok"), ("2", "ok")]


async def test_a_look_that_fails_or_hangs_hides_no_other() -> None:
    async def hang(_: Patient) -> Verdict:
        await asyncio.Event().wait()
        return ok("never")

    async def break_down(_: Patient) -> Verdict:
        raise ZeroDivisionError("by nobody's\nfault")

    async def refuse(_: Patient) -> Verdict:
        raise Unavailable("it is away")

    async def be_well(_: Patient) -> Verdict:
        return ok("here")

    looks = {"hang": hang, "break": break_down, "refuse": refuse, "well": be_well}
    limit = timedelta(milliseconds=100)
    checks = [Check(name=name, look=look, remedy="do this", limit=limit) for name, look in looks.items()]
    found = {finding.name: (finding.status, finding.found, finding.fix) for finding in await examine(checks, PATIENT)}
    assert found == {
        "hang": ("fail", "this look took longer than 0.1 s", "do this"),
        "break": ("fail", "this look failed: ZeroDivisionError: by nobody's fault", "do this"),
        "refuse": ("fail", "it is away", "do this"),
        "well": ("ok", "here", ""),
    }


async def test_what_several_looks_want_to_know_is_asked_once() -> None:
    patient = Patient(settings=Settings(database_url="file:realm"))
    asked: list[str] = []

    async def ask() -> str:
        asked.append("asked")
        await asyncio.sleep(0)
        return "told"

    assert await asyncio.gather(*(patient.once("it", ask) for _ in range(3))) == ["told"] * 3
    assert asked == ["asked"]


async def test_a_look_in_a_thread_brings_its_value_or_its_error() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)

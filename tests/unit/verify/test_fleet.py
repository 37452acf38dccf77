import asyncio
import os
import random
import signal
from pathlib import Path

from kingdom.verify.fleet import Fleet
from kingdom.verify.history import History, read_history
from kingdom.verify.process_config import ProcessConfig

DEATHS = 200


async def test_a_signal_to_a_process_that_is_just_dying_does_not_hide_how_it_died(tmp_path: Path) -> None:
    part = ProcessConfig(
        role="worker",
        name="",
        url="",
        schema="",
        directory=str(tmp_path),
        target_port=0,
        seed=0,
        lease_seconds=1,
        failure_rate=0,
        pause_seconds=0,
    )
    history = History(tmp_path, "fleet")
    fleet = Fleet(part, history, random.Random(1), command=("sleep", "600"))
    for member in [fleet.add("worker") for _ in range(DEATHS)]:
        while member.process is None:  # noqa: ASYNC110 - a start sends no notification
            await asyncio.sleep(0)
        member.retired = True
        os.kill(member.process.pid, signal.SIGKILL)
        fleet.send(member, signal.SIGCONT)
    await asyncio.gather(*(member.supervision for member in fleet.members if member.supervision))
    history.close()
    codes = [entry.facts["code"] for entry in read_history(tmp_path) if entry.what == "exited"]
    assert codes == [-signal.SIGKILL] * DEATHS

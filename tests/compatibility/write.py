"""Write a sample with the code of this checkout: `python -m tests.compatibility.write COMMIT`."""

import asyncio
import re
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from bench.crash_sweep.scene import make_repository
from bench.postgres import PrivateCluster
from kingdom.bootstrap import migrate
from kingdom.bus import Attempt, CallResult, Dispatcher, Envelope, RetryPolicy, Throttled, Topology, find_ledger
from kingdom.court.documents import AssignmentStatus, EventStatus
from kingdom.court.envoy.answers import open_questions
from kingdom.court.package import PetitionRule
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages.answers import CheckpointCreated
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.registry import create_git
from tests.compatibility.sample import FOLDER, GONE_HOST, STORE, Sample, dump, pack, unpack
from tests.contract.backends import FilesBackend, PostgresBackend
from tests.contract.outside import Payment
from tests.contract.processes import child
from tests.contract.scene import KINDS, TOPOLOGY, Scene, eventually
from tests.integration.court.general.scene import CourtScene, at_work, reports, work
from tests.integration.local_effect import LocalEffect
from tests.integration.soldiers.host_barriers import Barrier, publishes
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, writes
from tests.integration.soldiers.sources import run
from tests.integration.store_states import fill_every_state

# This path is part of the sample, so it must not reveal anything about this machine.
_PLACE = Path("/var/tmp/kingdom-sample")  # noqa: S108 - only its name matters, and it must not exist
_HOST_NAME = "sample"
# Relative to the clone of a host, so it is valid wherever a sample is unpacked.
_REMOTE = f"../../../remotes/{APP}.git"
# Longer than it takes to write a sample, so that nothing in it is tried again in the meantime.
_LATER = timedelta(minutes=1)
_SLOW = Topology(replace(TOPOLOGY.stream(name), retry=RetryPolicy(base=_LATER, jitter=0)) for name in TOPOLOGY.names())
# No deadline may have passed when a later version opens the sample.
_HUNDRED_YEARS = 100 * 365 * 24.0
_LEARNED = ["Reviews are short here.", {"about": "repo", "text": "The tests need a database."}]
_SUCCESS = reports(status="success", summary="all is well")


async def write(sample: Sample) -> None:
    """Write a store with unfinished work of every kind, and kill its last worker."""
    await _pause_run(sample)
    async with at_work(sample.backend, sample.machine) as court:
        await _learn(court)
        await _ask_people(court)
    async with sample.backend.open(_SLOW, KINDS) as bus:
        scene = Scene(sample.backend, bus, sample.backend.operations(bus))
        await _open_effects(scene)
        await fill_every_state(scene, _LATER)
        await bus.publish(_bill(3))
        async with child(scene, "pay_and_die", str(sample.payments)) as killed:
            await eventually(lambda: killed.has_ended, "it is killed")


async def _pause_run(sample: Sample) -> None:
    """Pause a run between two Works, and end its host."""
    source = make_repository(sample.machine / "sources" / APP)
    remote = sample.machine / "remotes" / f"{APP}.git"
    run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(remote), cwd=source)
    run("push", "--quiet", str(remote), "main", cwd=source)
    async with at_work(sample.backend, sample.machine, with_host=False) as court, AsyncExitStack() as hosts:
        await create_git(court.bus, Git(id=APP, name=APP, url=_REMOTE, checkpoint_remote=_REMOTE), actor=ANNA)
        scene = HostScene(sample.backend, court.bus, sample.machine, hosts)
        barrier = Barrier(lambda transaction: publishes(transaction, CheckpointCreated.__name__))
        host = await scene.start_host(GONE_HOST, wrap=barrier.wrap)
        workflow = await scene.begin(writes("one"), writes("two"))
        await barrier.reached()
        await lifecycle.pause(court.bus, workflow.id, actor=ANNA)
        barrier.open()
        await scene.until(workflow, WorkflowStatus.PAUSED)
        await scene.until_all_answered()
        await scene.stop_host(host)


async def _learn(court: CourtScene) -> None:
    """Store a memory of the General."""
    court.has(work("learn", reports(status="success", summary="learned", memory_updates=_LEARNED)), git_refs=())
    await court.until_event(await court.send_event(), EventStatus.COMPLETED)


async def _ask_people(court: CourtScene) -> None:
    """Let one assignment wait for an answer, and one for approval of its petition."""
    steps = {"ask": "Left or right?", "choices": ["left", "right"]}, reports(status="success", summary="Went {reply}.")
    court.has(work("look", *steps), git_refs=(), ask_deadline_hours=_HUNDRED_YEARS)
    await court.send_event()
    await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    rule = PetitionRule(kind="github.comment", approval=True, expires_hours=_HUNDRED_YEARS)
    comment = {"petition": "github.comment", "body": {"body": "Merge this at once."}}
    court.has(work("look", comment, _SUCCESS), git_refs=(), petitions=(rule,), ask_deadline_hours=_HUNDRED_YEARS)
    await court.send_event(number=1)

    async def both_ask_and_nothing_is_done() -> bool:
        async with court.bus.transaction() as transaction:
            asks = await open_questions(transaction)
        stats = await court.operations.stats()
        # There is no Envoy to send messages.
        busy = [each for each in stats if each.stream != "court.message" and each.pending + each.processing]
        return len(asks) == 2 and not busy and not await court.held()

    await eventually(both_ask_and_nothing_is_done, "two people are asked")


async def _open_effects(scene: Scene) -> None:
    """Leave one payment that waits to be sent, and one with an unknown outcome."""

    async def throttle(_: Attempt) -> CallResult:
        return Throttled(_LATER, "too many requests")

    async def hang_up(_: Attempt) -> CallResult:
        raise ConnectionResetError("the bank hung up")

    await _pay(scene, 1, throttle, "PREPARED")
    await _pay(scene, 2, hang_up, "UNKNOWN")


async def _pay(scene: Scene, invoice: int, call: Callable[[Attempt], Awaitable[CallResult]], ends: str) -> None:
    key, bank = f"invoice-{invoice}", Payment(Path()).target
    dispatcher = Dispatcher()
    dispatcher.effect("Bill", LocalEffect(call, target=bank, key=key))

    async def is_so_far() -> bool:
        async with scene.bus.transaction() as transaction:
            ledger = await find_ledger(transaction, bank.name, key)
        return ledger is not None and ledger.record.state == ends

    await scene.bus.publish(_bill(invoice))
    async with scene.working(dispatcher, "free"):
        await eventually(is_so_far, f"{key} is {ends}")


def _bill(invoice: int) -> Envelope:
    return Envelope(type="Bill", stream="free", payload={"invoice": invoice})


def _refuse_private(packed: Path, host_name: str) -> None:
    """Refuse a sample that reveals where it was written."""
    places = (re.escape(str(place)) for place in (Path.cwd(), Path.home()))
    private = re.compile("|".join([rf"\b{re.escape(host_name)}\b", *places]).encode())
    with TemporaryDirectory() as folder:
        for archive in packed.glob("*.tar.gz"):
            unpack(archive, Path(folder, archive.name))
        for file in (*Path(folder).rglob("*"), *packed.glob("*.sql")):
            if file.is_file() and (found := private.search(file.read_bytes())):
                raise SystemExit(f"{file} names {found[0]!r}, which must not be in a sample")


def main() -> None:
    target, packed, host_name = FOLDER / sys.argv[1], _PLACE / "packed", socket.gethostname()
    packed.mkdir(parents=True)
    try:
        with patch("socket.gethostname", return_value=_HOST_NAME), PrivateCluster() as cluster:
            place = cluster.create_database("sample")
            asyncio.run(migrate(place))
            for backend in (FilesBackend(str(_PLACE / FilesBackend.name / STORE)), PostgresBackend(place)):
                folder = _PLACE / backend.name
                folder.mkdir()
                asyncio.run(write(Sample(backend, folder)))
                backend.close()
                pack(folder, packed / f"{backend.name}.tar.gz")
            dump(place, packed / "postgres.sql")
        _refuse_private(packed, host_name)
        shutil.copytree(packed, target)
    finally:
        shutil.rmtree(_PLACE)


if __name__ == "__main__":
    main()

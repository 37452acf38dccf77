"""A soldier host: takes commands for its runs, executes them outside of transactions, and says what became of them."""

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import structlog

from kingdom.bus.event import Event
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.clock import utc_now
from kingdom.errors import KingdomError, Misconfigured, NotFound, Transient, Unreadable
from kingdom.soldiers.agent import AgentClient
from kingdom.soldiers.briefing import brief, tree_here
from kingdom.soldiers.duty import Duty
from kingdom.soldiers.earlier_checkouts import take_over_checkouts
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.leftovers import end_leftovers
from kingdom.soldiers.quarters import Quarters
from kingdom.soldiers.reporter import Reporter
from kingdom.soldiers.trees import Tree
from kingdom.workflow.hosts import find_host, register_host, renew_host, retire_host
from kingdom.workflow.lookout import boot_time
from kingdom.workflow.model.catalogue import COMMAND_TYPES
from kingdom.workflow.model.commands import Command, ReleaseWorkTree, SendQuery
from kingdom.workflow.model.git import Git
from kingdom.workflow.model.host import Host, Renewal
from kingdom.workflow.model.stale import why_stale
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import ACCEPTED, ANSWERED, COMMANDS, TREES_KEPT, WORKFLOWS, load, load_workflow
from kingdom.workflow.records import each as each_record

if TYPE_CHECKING:
    from kingdom.bus.metrics import WorkerMetrics

LEASE = timedelta(seconds=30)
# A lease counts as lost this much earlier here than elsewhere, so that agents are dead before anybody replaces them.
_SAFE_SHARE = 0.8
_RENEWALS_PER_LEASE = 3
_PAUSE_SECONDS = 1.0
_GUARD_SECONDS = 0.1
_FORGOTTEN_AT_ONCE = 500
_LAST_WORDS_SECONDS = 5.0
_CLEARED_EVERY_SECONDS = 3600.0
# All that a program needs to be found and to speak; agents inherit nothing.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_TYPES = {command.__name__: command for command in COMMAND_TYPES}
_log = structlog.get_logger("kingdom.soldiers")


class SoldierHost:
    """One host under one name; it runs until it is stopped, and begins anew whenever its lease was lost."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        client: AgentClient,
        folders: Folders,
        *,
        slots: int,
        quarters: Quarters,
        lease: timedelta = LEASE,
        environment: Mapping[str, str] = ENVIRONMENT,
        metrics: "WorkerMetrics | None" = None,
    ) -> None:
        self._bus = bus
        self._name = name
        self._folders = folders
        self._slots = slots
        self._lease = lease
        self._quarters = quarters
        self._reporter = Reporter(bus, quarters.redaction)
        self._duty = Duty(
            client,
            folders,
            self._reporter,
            slots=slots,
            environment=environment,
            quarters=quarters,
            bus=bus,
        )
        streams = [f"soldier.{name}", f"soldier.{name}.control"]
        self._worker = Worker(bus, self._dispatcher(), streams, name=name, metrics=metrics)
        self._host: Host | None = None
        self._safe_until = 0.0
        self._unknown: set[str] = set()

    async def run(self) -> None:
        """Register, take commands until stopped, then end every agent; sessions go on when the host is back."""
        self._folders.make()
        async with _alone(self._folders):
            await asyncio.to_thread(end_leftovers, self._folders.directory)
            await take_over_checkouts(
                self._folders.repositories, home=self._folders.directory, use=self._quarters.git_use
            )
            await self._begin()
            tasks = [
                asyncio.create_task(self._reporter.run(), name="kingdom-reporter"),
                asyncio.create_task(self._keep_lease(), name="kingdom-host-lease"),
                asyncio.create_task(self._guard_lease(), name="kingdom-host-guard"),
                asyncio.create_task(self._clear_old_runs(), name="kingdom-host-old-runs"),
            ]
            for task in tasks:
                # A host that cannot speak or renew its lease would look alive and do nothing.
                task.add_done_callback(lambda ended: None if ended.cancelled() else self.stop(at_once=True))
            try:
                await self._worker.run()
                await self._rest_if_idle()
            finally:
                await self._duty.end_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_SECONDS):
                        await self._reporter.said_all()
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the host to end; for a signal handler of the loop."""
        self._worker.stop(at_once=at_once)

    async def take_on(self, received: Event[Command], transaction: Transaction) -> None:
        """Accept a command that still counts; it is begun as soon as that is committed."""
        command = received.payload
        try:
            _, workflow = await load_workflow(transaction, command.workflow_id)
        except NotFound:
            return
        if stale := why_stale(workflow, command):
            _log.info("command is over", command=type(command).__name__, reason=stale, workflow=workflow.id)
            return
        accepted = Record(
            kind=COMMANDS.name,
            id=f"{command.workflow_id}.{received.envelope.event_id}",
            state=ACCEPTED,
            owner=self._name,
            doc={
                "type": received.envelope.type,
                **received.envelope.payload,
                "acceptedAt": utc_now().isoformat(),
            },
        )
        stored = await transaction.put(accepted)
        await self._begin_after(transaction, workflow, command, stored)

    async def _begin_after(
        self, transaction: Transaction, workflow: Workflow, command: Command, accepted: Record
    ) -> None:
        """Have a command begun once the transaction is committed; what cannot be briefed has failed."""
        try:
            briefing = await brief(transaction, workflow, command, accepted, self._folders)
        except Transient:
            raise
        except KingdomError as error:
            reason = error
            transaction.after_commit(lambda: self._duty.refuse(command, accepted, reason))
        else:
            transaction.after_commit(lambda: self._duty.begin(briefing))

    def _dispatcher(self) -> Dispatcher:
        dispatcher = Dispatcher()
        for command_type in COMMAND_TYPES.values():
            dispatcher.reaction(command_type, reads=WORKFLOWS.name)(self.take_on)
        return dispatcher

    async def _begin(self) -> None:
        """Register under a new epoch; what an earlier life had taken on is given up, the engine asks for it again."""
        self._host = await register_host(
            self._bus,
            self._name,
            self._slots,
            self._lease,
            machine=socket.gethostname(),
            directory=str(self._folders.directory),
            instance=self._folders.instance(),
            first=self._give_up,
        )
        # Registering may have taken as long as a lease: it counts from here.
        asked_at = boot_time()
        if not await renew_host(self._bus, self._host, self._duty.busy, self._lease):
            raise Transient(f"host {self._name} was lost while it registered: it registers again")
        self._safe_until = asked_at + self._lease.total_seconds() * _SAFE_SHARE
        _log.info("host registered", host=self._name, epoch=self._host.epoch, slots=self._slots)

    async def _clear_old_runs(self) -> None:
        """Remove, again and again, what lies here of runs that ended long ago or went on elsewhere."""
        while True:
            with suppress(OSError):
                # A disk that does not answer just now ends no agent.
                names = [folder.name for folder in self._folders.runs.iterdir()]
                await self._clear(names)
            await asyncio.sleep(_CLEARED_EVERY_SECONDS)

    async def _clear(self, workflow_ids: list[str]) -> None:
        for workflow_id in workflow_ids:
            try:
                await self._duty.clear(workflow_id, self._left_of)
            except Exception as error:  # noqa: BLE001 - one run must not keep the others here
                _log.warning("what is left of a run stays here", workflow=workflow_id, error=str(error))

    async def _left_of(self, workflow_id: str) -> list[Tree] | None:
        """Return the checkouts that a run has left here for good, or None where it may need what is here."""
        async with self._bus.transaction() as transaction:
            record = await transaction.get(WORKFLOWS.name, workflow_id)
            if record is None:
                return []
            workflow = Workflow.read(record.doc)
            over = workflow.ended_at or workflow.deleted_at
            is_old = over is not None and utc_now() - over > TREES_KEPT
            if not is_old and not await self._went_on_elsewhere(transaction, workflow):
                return None
            here = [tree for tree in workflow.work_trees if self._folders.tree(workflow_id, tree.id).exists()]
            gits = [(await load(transaction, Git, tree.ref.git_id))[1] for tree in here]
            return [tree_here(workflow, tree, git, self._folders) for tree, git in zip(here, gits, strict=True)]

    async def _went_on_elsewhere(self, transaction: Transaction, workflow: Workflow) -> bool:
        placement = workflow.placement
        if placement is None or placement.host == self._name:
            return False
        _, host = await find_host(transaction, placement.host)
        # The same directory under an earlier name is not elsewhere.
        return host is not None and host.instance != self._folders.instance()

    async def _give_up(self, transaction: Transaction) -> None:
        async for record in each_record(transaction, RecordQuery(kind=COMMANDS.name, state=ACCEPTED, owner=self._name)):
            # Nobody asks a second time to remove the checkout of an ended run: that is found again as forgotten.
            if record.doc["type"] != ReleaseWorkTree.__name__:
                await transaction.put(replace(record, state=ANSWERED))

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / _RENEWALS_PER_LEASE)
            renewal = await self._renew()
            if renewal is Renewal.REPLACED:
                await self._duty.end_all()
                raise Misconfigured(f"another host took the name {self._name}: give each a name of its own")
            if not renewal or not self._duty.is_open:
                await self._begin_anew()
            else:
                await self._look_for_forgotten()

    async def _guard_lease(self) -> None:
        """End every agent in time when the lease was not renewed, whatever else this host waits for."""
        while True:
            await asyncio.sleep(max(self._safe_until - boot_time(), _GUARD_SECONDS))
            if boot_time() >= self._safe_until and self._duty.is_open:
                _log.warning("lease not renewed in time, ending every agent", host=self._name)
                await self._duty.end_all()

    async def _renew(self) -> Renewal:
        """Renew the lease while it is ours; it is lost once it may be somebody else's turn."""
        host = self._host
        while host and (left := self._safe_until - boot_time()) > 0:
            asked_at = boot_time()
            try:
                async with asyncio.timeout(left):
                    renewal = await renew_host(self._bus, host, self._duty.busy, self._lease)
            except (TimeoutError, Transient) as error:
                _log.warning("lease not renewed, trying again", host=self._name, error=str(error))
                await asyncio.sleep(min(_PAUSE_SECONDS, left))
            else:
                if renewal:
                    self._safe_until = asked_at + self._lease.total_seconds() * _SAFE_SHARE
                return renewal
        return Renewal.LOST

    async def _rest_if_idle(self) -> None:
        """Let nothing be placed here any more; with something to do the lease stays for a restart to go on with."""
        if self._host and self._duty.is_idle:
            with suppress(Transient):
                await retire_host(self._bus, self._host, leaves_runs=False)

    async def _begin_anew(self) -> None:
        """End every agent before anything else: another host may go on with their runs."""
        _log.warning("lease lost, ending every agent", host=self._name)
        await self._duty.end_all()
        self._reporter.forget()
        while True:
            try:
                await self._begin()
            except Transient as error:
                _log.warning("cannot register, trying again", host=self._name, error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._duty.reopen()
                return

    async def _look_for_forgotten(self) -> None:
        """Begin what was accepted although the answer of the store to that was lost."""
        try:
            missing = await self._unknown_commands()
            # What was accepted just now may be about to begin: only what is missing twice is forgotten.
            forgotten = [missing[record_id] for record_id in self._unknown & missing.keys()]
            # The lease cannot be renewed meanwhile, so many are taken up little by little.
            for record in forgotten[:_FORGOTTEN_AT_ONCE]:
                _log.warning("an accepted command was not begun", command=record.id)
                async with self._bus.transaction() as transaction:
                    await self._take_up(transaction, record)
            self._unknown = set(missing)
        except Transient as error:
            _log.warning("the store does not tell what was accepted", error=str(error))

    async def _take_up(self, transaction: Transaction, record: Record) -> None:
        """Begin an accepted command now, unless it is over or its run is gone."""
        try:
            command = _read_command(record)
            _, workflow = await load_workflow(transaction, command.workflow_id)
        except (NotFound, Unreadable, msgspec.ValidationError, LookupError) as error:
            _log.warning("an accepted command cannot be begun any more", command=record.id, error=str(error))
            await transaction.put(replace(record, state=ANSWERED))
            return
        if why_stale(workflow, command):
            await transaction.put(replace(record, state=ANSWERED))
            return
        if isinstance(command, SendQuery):
            # It may have been sent already: the transcript tells.
            command = msgspec.structs.replace(command, reconcile=True)
        await self._begin_after(transaction, workflow, command, record)

    async def _unknown_commands(self) -> dict[str, Record]:
        async with self._bus.transaction() as transaction:
            query = RecordQuery(kind=COMMANDS.name, state=ACCEPTED, owner=self._name)
            return {each.id: each async for each in each_record(transaction, query) if not self._duty.knows(each.id)}


def _read_command(record: Record) -> Command:
    document = dict(record.doc)
    command: Command = msgspec.convert(document, _TYPES[document.pop("type")])
    return command


@asynccontextmanager
async def _alone(folders: Folders) -> AsyncIterator[None]:
    """Keep a second host out of the same directory."""
    descriptor = os.open(folders.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Misconfigured(
                f"another host uses {folders.directory}: stop it, or give this one a directory of its own"
            ) from None
        yield
    finally:
        os.close(descriptor)

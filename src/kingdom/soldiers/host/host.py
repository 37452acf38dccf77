"""A soldier host: accepts commands for its runs, executes them outside of transactions, and replies."""

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
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
from kingdom.errors import KingdomError, Misconfigured, NotFound, Transient, Unreadable, describe_error
from kingdom.failure_log import log_failure
from kingdom.soldiers.agents.port import AgentClient
from kingdom.soldiers.checkouts.legacy_checkouts import migrate_legacy_checkouts
from kingdom.soldiers.checkouts.repository import remove_stale_locks
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec
from kingdom.soldiers.host.command_input import load_command_input, local_checkout
from kingdom.soldiers.host.reporter import Reporter
from kingdom.soldiers.host.running_commands import RunningCommands
from kingdom.soldiers.processes.leftovers import kill_leftover_processes
from kingdom.soldiers.transcripts.copier import TranscriptCopier
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow.host_liveness import boot_time
from kingdom.workflow.hosts import find_host, register_host, renew_host, retire_host
from kingdom.workflow.model.messages.catalog import COMMAND_TYPES
from kingdom.workflow.model.messages.commands import HostCommand, ReleaseWorkTree, SendQuery
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.host import Host, HostRenewal
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.steps.stale_commands import why_stale
from kingdom.workflow.records import (
    ACCEPTED,
    ANSWERED,
    COMMANDS,
    TREES_KEPT,
    WORKFLOWS,
    each_record,
    is_session_in_use,
    load_resource,
    load_workflow,
)

if TYPE_CHECKING:
    from kingdom.bus.metrics import WorkerMetrics

LEASE = timedelta(seconds=30)
# If the lease is not renewed within this share of its time, the host stops its agents, so that they have ended before
# another host continues their runs.
_SAFE_SHARE = 0.8
_RENEWALS_PER_LEASE = 3
_PAUSE_SECONDS = 1.0
_GUARD_SECONDS = 0.1
_UNSTARTED_AT_ONCE = 500
_FLUSH_SECONDS = 5.0
_CLEANUP_SECONDS = 3600.0
# The environment of programs. They inherit no variables of the host.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_TYPES = {command.__name__: command for command in COMMAND_TYPES}
_log = structlog.get_logger("kingdom.soldiers")


class SoldierHost:
    """One host under one name; it runs until it is stopped, and registers again if it loses its lease."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        client: AgentClient,
        folders: HostFolders,
        *,
        slots: int,
        agent_environment: AgentEnvironment,
        lease: timedelta = LEASE,
        environment: Mapping[str, str] = ENVIRONMENT,
        metrics: "WorkerMetrics | None" = None,
        texts: RunTexts | None = None,
    ) -> None:
        self._bus = bus
        self._name = name
        self._folders = folders
        self._slots = slots
        self._lease = lease
        self._agent_environment = agent_environment
        self._reporter = Reporter(bus, agent_environment.redaction)
        self._copier = TranscriptCopier(texts, folders, agent_environment.redaction) if texts else None
        self._commands = RunningCommands(
            client,
            folders,
            self._reporter,
            slots=slots,
            environment=environment,
            agent_environment=agent_environment,
            bus=bus,
            texts=texts,
            copier=self._copier,
        )
        streams = [f"soldier.{name}", f"soldier.{name}.control"]
        self._worker = Worker(bus, self._dispatcher(), streams, name=name, metrics=metrics)
        self._host: Host | None = None
        self._safe_until = 0.0
        self._unstarted_before: set[str] = set()

    async def run(self) -> None:
        """Register, accept commands until stopped, then stop every agent. A restarted host continues their sessions."""
        self._folders.create()
        async with _exclusive_directory(self._folders):
            await asyncio.to_thread(kill_leftover_processes, self._folders.directory)
            await asyncio.to_thread(remove_stale_locks, self._folders.repositories)
            await migrate_legacy_checkouts(
                self._folders.repositories, home=self._folders.directory, git_policy=self._agent_environment.git_policy
            )
            await self._register()
            tasks = [
                asyncio.create_task(self._reporter.run(), name="kingdom-reporter"),
                asyncio.create_task(self._keep_lease(), name="kingdom-host-lease"),
                asyncio.create_task(self._guard_lease(), name="kingdom-host-guard"),
                asyncio.create_task(self._remove_old_runs(), name="kingdom-host-old-runs"),
            ]
            if self._copier:
                tasks.append(asyncio.create_task(self._copier.run(), name="kingdom-transcript-copier"))
            for task in tasks:
                # A host that cannot reply or renew its lease would look alive and do nothing.
                task.add_done_callback(lambda ended: None if ended.cancelled() else self.stop(at_once=True))
            try:
                await self._worker.run()
                await self._retire_if_idle()
            finally:
                await self._commands.end_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FLUSH_SECONDS):
                        await self._reporter.wait_until_sent()
                if self._copier:
                    await self._copier.flush()
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the host to stop; callable from a signal handler of the loop."""
        self._worker.stop(at_once=at_once)

    async def accept_command(self, received: Event[HostCommand], transaction: Transaction) -> None:
        """Accept a command, unless its run no longer needs it. It starts after the transaction is committed."""
        command = received.payload
        try:
            _, workflow = await load_workflow(transaction, command.workflow_id)
        except NotFound:
            return
        if stale := why_stale(workflow, command):
            _log.info(
                "the run no longer needs a command", command=type(command).__name__, reason=stale, workflow=workflow.id
            )
            return
        accepted = Record(
            kind=COMMANDS.name,
            id=f"{command.workflow_id}.{received.envelope.event_id}",
            state=ACCEPTED,
            indexed={"host": self._name},
            doc={
                "type": received.envelope.type,
                **received.envelope.payload,
                "acceptedAt": utc_now().isoformat(),
            },
        )
        stored = await transaction.put(accepted)
        await self._start_after_commit(transaction, workflow, command, stored)

    async def _start_after_commit(
        self, transaction: Transaction, workflow: Workflow, command: HostCommand, accepted: Record
    ) -> None:
        """Start a command after the transaction is committed; a command whose input cannot be read fails."""
        try:
            command_input = await load_command_input(transaction, workflow, command, accepted, self._folders)
        except Transient:
            raise
        except KingdomError as error:
            reason = error
            transaction.after_commit(lambda: self._commands.refuse(command, accepted, reason))
        else:
            transaction.after_commit(lambda: self._commands.begin(command_input))

    def _dispatcher(self) -> Dispatcher:
        dispatcher = Dispatcher()
        for command_type in COMMAND_TYPES.values():
            dispatcher.reaction(command_type, reads=WORKFLOWS.name)(self.accept_command)
        return dispatcher

    async def _register(self) -> None:
        """Register under a new epoch, and close the commands of earlier epochs, because the engine sends them again."""
        self._host = await register_host(
            self._bus,
            self._name,
            self._slots,
            self._lease,
            machine=socket.gethostname(),
            directory=str(self._folders.directory),
            instance=self._folders.instance(),
            on_name_free=self._close_accepted,
        )
        # Registering may have taken as long as a lease, so renew the lease right away.
        asked_at = boot_time()
        if not await renew_host(self._bus, self._host, self._commands.busy, self._lease):
            raise Transient(f"host {self._name} lost its lease while it registered: it registers again")
        self._safe_until = asked_at + self._lease.total_seconds() * _SAFE_SHARE
        _log.info("host registered", host=self._name, epoch=self._host.epoch, slots=self._slots)

    async def _remove_old_runs(self) -> None:
        """Periodically remove the files of runs that ended long ago or continued on another host."""
        while True:
            with suppress(OSError):
                # A temporary failure of the disk must not stop agents.
                names = [folder.name for folder in self._folders.runs.iterdir()]
                await self._remove_runs(names)
            await asyncio.sleep(_CLEANUP_SECONDS)

    async def _remove_runs(self, workflow_ids: list[str]) -> None:
        for workflow_id in workflow_ids:
            try:
                await self._commands.remove_run(workflow_id, self._removable_checkouts)
            except Exception as error:  # noqa: BLE001 - one run must not prevent the removal of others
                message = "the files of a run could not be removed"
                log_failure(_log, message, error, expected=(KingdomError, OSError), workflow=workflow_id)

    async def _removable_checkouts(self, workflow_id: str) -> list[CheckoutSpec] | None:
        """Return a run's checkouts that can be removed, or None if the run may still need its files here."""
        async with self._bus.transaction() as transaction:
            record = await transaction.get(WORKFLOWS.name, workflow_id)
            if record is None:
                return []
            workflow = Workflow.read(record.doc)
            needed_until = workflow.needed_until
            is_old = needed_until is not None and utc_now() - needed_until > TREES_KEPT
            if not is_old and not await self._continues_elsewhere(transaction, workflow):
                return None
            if await is_session_in_use(transaction, workflow):
                return None
            here = [tree for tree in workflow.work_trees if self._folders.checkout(workflow_id, tree.id).exists()]
            gits = [(await load_resource(transaction, Git, tree.ref.git_id))[1] for tree in here]
            return [local_checkout(workflow, tree, git, self._folders) for tree, git in zip(here, gits, strict=True)]

    async def _continues_elsewhere(self, transaction: Transaction, workflow: Workflow) -> bool:
        placement = workflow.placement
        if placement is None or placement.host == self._name:
            return False
        _, host = await find_host(transaction, placement.host)
        # A host with the same directory is this host under an earlier name.
        return host is not None and host.instance != self._folders.instance()

    async def _close_accepted(self, transaction: Transaction) -> None:
        query = RecordQuery(kind=COMMANDS.name, state=ACCEPTED, index="host", value=self._name)
        async for record in each_record(transaction, query):
            # The engine does not send a release again after the run has ended. This command stays accepted, and
            # `_start_unstarted` starts it.
            if record.doc["type"] != ReleaseWorkTree.__name__:
                await transaction.put(record.replace(state=ANSWERED))

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / _RENEWALS_PER_LEASE)
            renewal = await self._renew()
            if renewal is HostRenewal.REPLACED:
                await self._commands.end_all()
                raise Misconfigured(f"another host took the name {self._name}: give each host its own name")
            if not renewal or not self._commands.is_open:
                await self._register_again()
            else:
                await self._start_unstarted()

    async def _guard_lease(self) -> None:
        """Stop every agent in time if the lease is not renewed, even if the renewal hangs."""
        while True:
            await asyncio.sleep(max(self._safe_until - boot_time(), _GUARD_SECONDS))
            if boot_time() >= self._safe_until and self._commands.is_open:
                _log.warning("lease not renewed in time, ending every agent", host=self._name)
                await self._commands.end_all()

    async def _renew(self) -> HostRenewal:
        """Renew the lease, and retry until `_safe_until`; then the lease counts as lost."""
        host = self._host
        while host and (left := self._safe_until - boot_time()) > 0:
            asked_at = boot_time()
            try:
                async with asyncio.timeout(left):
                    renewal = await renew_host(self._bus, host, self._commands.busy, self._lease)
            except (TimeoutError, Transient) as error:
                _log.warning("lease not renewed, trying again", host=self._name, error=describe_error(error))
                await asyncio.sleep(min(_PAUSE_SECONDS, left))
            else:
                if renewal:
                    self._safe_until = asked_at + self._lease.total_seconds() * _SAFE_SHARE
                return renewal
        return HostRenewal.LOST

    async def _retire_if_idle(self) -> None:
        """Retire if idle; otherwise keep the lease, so a restarted host continues its runs."""
        if self._host and self._commands.is_idle:
            with suppress(Transient):
                await retire_host(self._bus, self._host, leaves_runs=False)

    async def _register_again(self) -> None:
        """Stop every agent, because another host may continue the runs, and register again."""
        _log.warning("lease lost, ending every agent", host=self._name)
        await self._commands.end_all()
        self._reporter.discard_unsent()
        while True:
            try:
                await self._register()
            except Transient as error:
                _log.warning("cannot register, trying again", host=self._name, error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._commands.reopen()
                return

    async def _start_unstarted(self) -> None:
        """Start accepted commands that do not run: the answer to their commit was lost, or the host has restarted."""
        try:
            unstarted = await self._find_unstarted_commands()
            # A command may be about to start, so only commands that were found in the previous call too are started.
            overdue = [unstarted[record_id] for record_id in self._unstarted_before & unstarted.keys()]
            # The lease is not renewed during this loop, so the number of commands is limited.
            for record in overdue[:_UNSTARTED_AT_ONCE]:
                _log.warning("an accepted command was not started; starting it now", command=record.id)
                async with self._bus.transaction() as transaction:
                    await self._start_accepted(transaction, record)
            self._unstarted_before = set(unstarted)
        except Transient as error:
            _log.warning("accepted commands cannot be read from the store", error=str(error))

    async def _start_accepted(self, transaction: Transaction, record: Record) -> None:
        """Start an accepted command now, unless its run is gone or no longer needs it."""
        try:
            command = _read_command(record)
            _, workflow = await load_workflow(transaction, command.workflow_id)
        except (NotFound, Unreadable, msgspec.ValidationError, LookupError) as error:
            _log.warning("an accepted command cannot be started any more", command=record.id, error=str(error))
            await transaction.put(record.replace(state=ANSWERED))
            return
        if why_stale(workflow, command):
            await transaction.put(record.replace(state=ANSWERED))
            return
        if isinstance(command, SendQuery):
            # The prompt may have been sent already, so the agent's transcript is searched for it.
            command = msgspec.structs.replace(command, reconcile=True)
        await self._start_after_commit(transaction, workflow, command, record)

    async def _find_unstarted_commands(self) -> dict[str, Record]:
        async with self._bus.transaction() as transaction:
            query = RecordQuery(kind=COMMANDS.name, state=ACCEPTED, index="host", value=self._name)
            return {
                each.id: each async for each in each_record(transaction, query) if not self._commands.knows(each.id)
            }


def _read_command(record: Record) -> HostCommand:
    document = dict(record.doc)
    command: HostCommand = msgspec.convert(document, _TYPES[document.pop("type")])
    return command


@asynccontextmanager
async def _exclusive_directory(folders: HostFolders) -> AsyncIterator[None]:
    """Keep a second host out of the same directory."""
    descriptor = os.open(folders.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Misconfigured(
                f"another host uses {folders.directory}: stop it, or give this host its own directory"
            ) from None
        yield
    finally:
        os.close(descriptor)

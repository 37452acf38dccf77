"""The Chamberlain: runs all its jobs every `every_seconds`. A failing job does not stop the others."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import structlog

from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import FilesCleaned, LogRotated
from kingdom.clock import utc_now
from kingdom.court.chamberlain.budget import BudgetState, update_budget
from kingdom.court.chamberlain.calendar import latest_due
from kingdom.court.chamberlain.daily_report import send_reports
from kingdom.court.chamberlain.health import HealthLevel, HealthState, next_health
from kingdom.court.chamberlain.log_reader import read_new_entries
from kingdom.court.chamberlain.records import (
    CHAMBERLAIN,
    HEALTH,
    STATE,
    load_or_create,
    log_internal_event,
    notify,
    save_if_changed,
)
from kingdom.court.chamberlain.retention import clean_up
from kingdom.court.chamberlain.sensor import MachineSensor, Sensor
from kingdom.court.chamberlain.session_cleanup import clean_up_sessions
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.chamberlain.supervision import check_roles, is_role_known, silence_of
from kingdom.court.documents import Urgency
from kingdom.court.envoy.records import MessageThread, load_entries
from kingdom.court.king.context import KING
from kingdom.court.records import CURRENT
from kingdom.court.text_logs import METRICS, NAMES, TextLog, log_path, rotate
from kingdom.errors import KingdomError
from kingdom.failure_log import log_failure
from kingdom.workflow.records import run_transaction

# A job that hangs is cancelled after this time.
_JOB_SECONDS_MAX = 600.0
_OLD_THREADS_AFTER = timedelta(days=7)
_log = structlog.get_logger("kingdom.court")


class CleanUpState(msgspec.Struct, frozen=True, kw_only=True):
    """The day of the last cleanup."""

    last_day: date | None = None


class Chamberlain:
    """Runs its jobs until stopped. Any number of Chamberlains may run.

    `directory` is where Kingdom keeps its files. Without it, no files are rotated or removed.
    """

    def __init__(
        self,
        bus: Bus,
        operations: Operations,
        settings: ChamberlainSettings,
        *,
        zone: ZoneInfo,
        directory: Path | None = None,
        sensor: Sensor | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._bus = bus
        self._operations = operations
        self._settings = settings
        self._zone = zone
        self._directory = directory
        self._sensor = sensor or MachineSensor(directory)
        self._clock = clock
        self._stopping = asyncio.Event()
        self._metrics = TextLog(log_path(directory, METRICS), clock=clock) if directory else None
        self._roles_checked_at = self._watching_since = clock()
        self._heartbeats: Mapping[str, datetime] = {}
        self._many_timeouts = ""
        self._log_is_read = False
        self._job_timeouts: set[asyncio.Timeout] = set()
        self._budget: BudgetState | None = None

    async def run(self) -> None:
        """Run rounds until stopped."""
        # Health has its own task, because jobs may take long and the King starts nothing on an old reading.
        measuring = asyncio.create_task(self._keep_measuring(), name="kingdom-chamberlain-health")
        try:
            while not self._stopping.is_set():
                await self.run_round()
                await self._pause(self._settings.every_seconds)
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)
            if self._metrics:
                self._metrics.close()

    async def _keep_measuring(self) -> None:
        while not self._stopping.is_set():
            await self.measure()
            await self._pause(self._settings.every_seconds)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the Chamberlain to stop after the current job, or at once. A signal handler of the loop may call this."""
        self._stopping.set()
        if at_once:
            for timeout in self._job_timeouts:
                # A timeout that is over cancels its job.
                timeout.reschedule(asyncio.get_running_loop().time())

    async def measure(self) -> None:
        """Measure the machine and store its health."""
        await self._run_job("health", self._check_health, self._clock())

    async def run_round(self) -> None:
        """Run every job once. The order matters only where a job uses the result of another."""
        now = self._clock()
        jobs: tuple[tuple[str, Callable[[datetime], Awaitable[None]]], ...] = (
            ("roles", self._check_roles),
            ("log", self._read_log),
            ("budget", self._check_budget),
            ("sessions", self._check_sessions),
            ("report", self._send_reports),
            ("logs", self._rotate_logs),
            ("clean-up", self._clean_up),
        )
        for name, job in jobs:
            if self._stopping.is_set():
                return
            await self._run_job(name, job, now)

    async def _run_job(self, name: str, job: Callable[[datetime], Awaitable[None]], now: datetime) -> None:
        timeout = asyncio.timeout(_JOB_SECONDS_MAX)
        self._job_timeouts.add(timeout)
        try:
            async with timeout:
                await job(now)
        except Exception as error:  # noqa: BLE001 - a bug in one job must not end the others
            log_failure(_log, "a job failed, trying again", error, expected=(KingdomError, OSError), job=name)
        finally:
            self._job_timeouts.discard(timeout)

    async def _check_roles(self, now: datetime) -> None:
        settings = self._settings.heartbeat
        # After a long pause, the whole machine may have been suspended. Earlier silence of a role means nothing then.
        if now - self._roles_checked_at > timedelta(seconds=settings.threshold_seconds):
            self._watching_since = now
        self._roles_checked_at = now
        self._heartbeats = await check_roles(self._bus, self._directory, settings, self._watching_since, now)

    async def _read_log(self, now: datetime) -> None:
        self._log_is_read = False
        settings = self._settings.heartbeat
        reading = await read_new_entries(
            self._bus,
            self._operations,
            self._settings,
            self._zone,
            now,
            silence_of(self._heartbeats, KING, now, settings),
            king_is_known=is_role_known(self._heartbeats, KING, self._watching_since, now, settings),
        )
        self._many_timeouts, self._log_is_read = reading.many_timeouts, True
        for alert in reading.alerts:
            _log.warning(alert.text)

    async def _check_health(self, now: datetime) -> None:
        """Measure this machine and store its health."""
        metrics = await self._sensor.read()

        async def act(transaction: Transaction) -> HealthState:
            record, before = await load_or_create(transaction, HEALTH, CURRENT, HealthState)
            settings = self._settings.health
            health, events = next_health(before, self._sensor.name, metrics, now, settings, self._many_timeouts)
            for event in events:
                await log_internal_event(transaction, event, now)
            if health.stop_level is HealthLevel.RED and before.stop_level is not HealthLevel.RED:
                text = f"Health is red ({health.stop_reason}): no new work starts."
                channel = self._settings.channel
                await notify(transaction, text, channel=channel, now=now, zone=self._zone, urgency=Urgency.URGENT)
            await save_if_changed(transaction, record, health)
            return health

        self._write_metrics(await run_transaction(self._bus, act))

    async def _check_budget(self, now: datetime) -> None:
        self._budget = await update_budget(self._bus, self._settings, self._zone, now)

    async def _check_sessions(self, now: datetime) -> None:
        await clean_up_sessions(self._bus, now)

    async def _send_reports(self, now: datetime) -> None:
        # The sums of a report are too small until the log is read completely.
        if self._log_is_read:
            await send_reports(self._bus, self._settings, self._zone, now)

    async def _rotate_logs(self, now: datetime) -> None:
        if self._directory is None:
            return
        for name in NAMES:
            path = log_path(self._directory, name)
            size = await asyncio.to_thread(rotate, path, self._settings.retention.log_max_bytes)
            if size is not None:
                rotated = LogRotated(file=f"logs/{path.name}", size_mb=round(size / (1 << 20), 1))
                async with self._bus.transaction() as transaction:
                    await log_internal_event(transaction, rotated, now)

    async def _clean_up(self, now: datetime) -> None:
        """Clean up once a day, at `clean_up_hour` or as soon as possible after it. A second cleanup does no harm."""
        day = latest_due(now, self._zone, self._settings.clean_up_hour)
        async with self._bus.transaction() as transaction:
            _, done = await load_or_create(transaction, STATE, "clean-ups", CleanUpState)
        if done.last_day is not None and done.last_day >= day:
            return
        removed = await clean_up(self._bus, self._operations, self._settings.retention, self._directory, now)

        async def act(transaction: Transaction) -> None:
            record, _ = await load_or_create(transaction, STATE, "clean-ups", CleanUpState)
            await save_if_changed(transaction, record, CleanUpState(last_day=day))
            if removed:
                await log_internal_event(transaction, FilesCleaned(deleted_count=removed), now)

        await run_transaction(self._bus, act)
        await self._log_old_threads(now)

    async def _log_old_threads(self, now: datetime) -> None:
        """Log old threads. Either their assignment still runs, or the Envoy did not remove them when it ended."""
        async with self._bus.transaction() as transaction:
            threads = await load_entries(transaction, MessageThread)
        for assignment_id, thread in threads.items():
            if now - thread.created_at > _OLD_THREADS_AFTER:
                _log.warning(
                    "a thread is still stored long after its assignment started",
                    assignment=assignment_id,
                    days=_OLD_THREADS_AFTER.days,
                )

    def _write_metrics(self, health: HealthState) -> None:
        if self._metrics:
            budget = self._budget
            money = {"budget": budget.status, "spent_usd": f"{budget.cost_usd:.2f}"} if budget else {}
            self._metrics.write(CHAMBERLAIN, "metrics", {"level": health.level, **health.metrics, **money})

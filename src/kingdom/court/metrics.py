"""The status of the court as Prometheus metrics, with the numbers of `kingdom status`."""

from collections import Counter
from collections.abc import Awaitable, Callable
from math import nan

from prometheus_client import CollectorRegistry, Gauge

from kingdom.bus.metrics import Gauges
from kingdom.court.chamberlain.health import HealthLevel
from kingdom.court.documents import Priority
from kingdom.court.status import CourtStatus
from kingdom.workflow.model.resources.host import HostStatus

_LEVELS = {str(level): number for number, level in enumerate(HealthLevel)}


class CourtMetrics(Gauges):
    """The status of the court. A metric without labels is NaN while its value is unknown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            made = Gauge(f"kingdom_court_{name}", text, labels, registry=registry)
            if not labels:
                # A new gauge is 0, which looks healthy.
                made.set(nan)
            return made

        self._troubles = gauge("troubles", "Problems that need a person")
        self._seen = gauge("seen_timestamp_seconds", "When the status was last read; 0 is never")
        # Start with 0 instead of NaN, so that an alert on the age of the status fires.
        self._seen.set(0)
        self._health = gauge("health", "The health: 0 green, 1 yellow, 2 orange, 3 red")
        self._silent = gauge("role_silent_seconds", "Time since the last heartbeat of a running role", "role")
        self._money = gauge("money_usd", "The daily budget in dollars: spent, set_aside and limit", "kind")
        self._slots_held = gauge("slots_held", "Slots in use", "scope")
        self._slots_limit = gauge(
            "slots_limit", "The limit of slots: in total, and of each scope with slots in use", "scope"
        )
        self._undecided = gauge("events_undecided", "Events that the King has not routed yet")
        self._waiting = gauge("events_waiting", "Events that wait for a General; counting stops at 1000", "priority")
        self._assignments = gauge("assignments", "Assignments that have not ended; counting stops at 1000", "status")
        self._open_questions = gauge("open_questions", "Open questions to people; counting stops at 1000")
        self._hosts = gauge("hosts", "Machines that run agents", "status")
        self._parked = gauge("parked", "Runs that wait until their model provider resets its usage limit")

    async def refresh(self, read: Callable[[], Awaitable[CourtStatus]]) -> None:
        """Read the status once and show it."""
        self.show(await read())

    def show(self, court_status: CourtStatus) -> None:
        """Set every metric from a status."""
        money, waiting = court_status.money, court_status.waiting.by_priority
        hosts = Counter(host.status for host in court_status.hosts)
        self._health.set(_LEVELS.get(court_status.health.level, nan))
        silent = {role.role: role.silent_seconds for role in court_status.roles}
        self._show(self._silent, {role: seconds for role, seconds in silent.items() if seconds is not None})
        self._show(self._money, {"spent": money.spent, "set_aside": money.set_aside, "limit": money.limit})
        self._show(self._slots_held, {each.scope: each.held for each in court_status.slots})
        self._show(self._slots_limit, {each.scope: each.limit for each in court_status.slots})
        self._undecided.set(court_status.undecided)
        self._show(self._waiting, {str(each): waiting.get(str(each), 0) for each in Priority})
        self._show(self._assignments, court_status.assignments)
        self._open_questions.set(court_status.open_asks)
        self._show(self._hosts, {str(each): hosts[each] for each in HostStatus})
        self._parked.set(len(court_status.parked))
        self._troubles.set(len(court_status.troubles))
        self._seen.set(court_status.at.timestamp())

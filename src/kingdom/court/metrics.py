"""How the court stands, as metrics: the numbers of `kingdom status`."""

from collections import Counter
from collections.abc import Awaitable, Callable
from math import nan

from prometheus_client import CollectorRegistry, Gauge

from kingdom.bus.metrics import Gauges
from kingdom.court.chamberlain.health import HealthLevel
from kingdom.court.documents import Priority
from kingdom.court.status import CourtStatus
from kingdom.workflow.model.host import HostStatus

_LEVELS = {str(level): number for number, level in enumerate(HealthLevel)}


class CourtMetrics(Gauges):
    """How the court stands, as `kingdom status` shows it; what has no label is NaN while it is not known."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            made = Gauge(f"kingdom_court_{name}", text, labels, registry=registry)
            if not labels:
                # Else it would begin as 0, as if all were well.
                made.set(nan)
            return made

        self._troubles = gauge("troubles", "Things that need a person")
        self._seen = gauge("seen_timestamp_seconds", "When all of this was last seen to be so; 0 is never")
        # It is old, not unknown: an alarm about its age must go off.
        self._seen.set(0)
        self._health = gauge("health", "The health: 0 green, 1 yellow, 2 orange, 3 red")
        self._silent = gauge("role_silent_seconds", "Time since the last sign of life of a role that runs", "role")
        self._money = gauge("money_usd", "The dollars of the day: spent, set_aside and limit", "kind")
        self._slots_held = gauge("slots_held", "Slots that are taken", "scope")
        self._slots_limit = gauge("slots_limit", "Slots that there are, of all and where some are taken", "scope")
        self._undecided = gauge("events_undecided", "Events that the King has not decided about")
        self._waiting = gauge("events_waiting", "Events that wait for a General; counting stops at 1000", "priority")
        self._assignments = gauge("assignments", "Assignments that are not over; counting stops at 1000", "status")
        self._open_questions = gauge("open_questions", "Questions that wait for a person; counting stops at 1000")
        self._hosts = gauge("hosts", "Machines that run agents", "status")
        self._parked = gauge("parked", "Runs that wait for the limit of their vendor to end")

    async def refresh(self, look: Callable[[], Awaitable[CourtStatus]]) -> None:
        """Look once, and show it."""
        self.show(await look())

    def show(self, standing: CourtStatus) -> None:
        """Show how the court stands."""
        money, waiting = standing.money, standing.waiting.by_priority
        hosts = Counter(host.status for host in standing.hosts)
        self._health.set(_LEVELS.get(standing.health.level, nan))
        silent = {role.role: role.silent_seconds for role in standing.roles}
        self._show(self._silent, {role: seconds for role, seconds in silent.items() if seconds is not None})
        self._show(self._money, {"spent": money.spent, "set_aside": money.set_aside, "limit": money.limit})
        self._show(self._slots_held, {each.scope: each.held for each in standing.slots})
        self._show(self._slots_limit, {each.scope: each.limit for each in standing.slots})
        self._undecided.set(standing.undecided)
        self._show(self._waiting, {str(each): waiting.get(str(each), 0) for each in Priority})
        self._show(self._assignments, standing.assignments)
        self._open_questions.set(standing.open_asks)
        self._show(self._hosts, {str(each): hosts[each] for each in HostStatus})
        self._parked.set(len(standing.parked))
        self._troubles.set(len(standing.troubles))
        self._seen.set(standing.at.timestamp())

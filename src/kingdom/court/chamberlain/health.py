"""The health of machines. A level rises at its threshold, and falls only when the use is `margin` below it.

Memory, disk and many timeouts may stop new work. Processor pressure only lowers the number of slots.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from kingdom.chronicle.events import HealthChanged, InternalEvent, ResourceWarned
from kingdom.court.chamberlain.settings import HealthSettings

CPU, MEMORY, DISK = "cpu_percent", "memory_percent", "disk_percent"
RESOURCE_NAMES: Mapping[str, str] = {CPU: "processors", MEMORY: "memory", DISK: "disk"}


def describe_reason(reason: str) -> str:
    """Return the reason of a level in words: `cpu_percent: 71` is "processors at 71 %"."""
    resource, _, percent = reason.partition(": ")
    return f"{RESOURCE_NAMES[resource]} at {percent} %" if resource in RESOURCE_NAMES else reason


class HealthLevel(StrEnum):
    """How healthy the machines are.

    The level of everything but the processors decides how much new work may start: all (green), only high priority
    (yellow), none (orange), or none and people are alerted (red).
    """

    GREEN = "green"
    YELLOW = "yellow"
    ORANGE = "orange"
    RED = "red"

    @property
    def rank(self) -> int:
        """Return the severity as a number."""
        return list(HealthLevel).index(self)


# The share of its slots that a machine offers, by the level of its processor pressure.
_SLOT_SHARES = {HealthLevel.GREEN: 1.0, HealthLevel.YELLOW: 0.5, HealthLevel.ORANGE: 0.0, HealthLevel.RED: 0.0}
Thresholds = tuple[tuple[float, HealthLevel], ...]


class MachineReading(msgspec.Struct, frozen=True, kw_only=True):
    """The last measured use of one machine, and the level of each resource."""

    at: datetime
    metrics: dict[str, float]
    levels: dict[str, HealthLevel]


class HealthState(msgspec.Struct, kw_only=True):
    """The health of all machines: the worst level, its reason, and the metrics of the machine that caused it.

    `stop_level` is the worst level without the processors. `slot_share` is the share of all slots that processor
    pressure leaves usable; the King always uses at least one slot.
    """

    level: HealthLevel = HealthLevel.GREEN
    reason: str = ""
    stop_level: HealthLevel | None = None
    stop_reason: str = ""
    slot_share: float = 1.0
    slot_reason: str = ""
    at: datetime | None = None
    metrics: dict[str, float] = {}
    machines: dict[str, MachineReading] = {}


def thresholds_of(metric: str, settings: HealthSettings) -> Thresholds:
    """Return the thresholds of a resource with their levels, the lowest first."""
    if metric == DISK:
        return (settings.disk_yellow, HealthLevel.YELLOW), (settings.disk_orange, HealthLevel.ORANGE)
    return (settings.yellow, HealthLevel.YELLOW), (settings.orange, HealthLevel.ORANGE), (settings.red, HealthLevel.RED)


def threshold_settings(level: str) -> str:
    """Return the names of the settings to raise at a level. At red, orange must be raised too."""
    return "orange and red" if level == HealthLevel.RED else level


def level_of(value: float, thresholds: Thresholds, before: HealthLevel, margin: float) -> HealthLevel:
    """Return the level of a resource. It rises at its threshold, and falls only `margin` below it."""
    reached = _reached(value, thresholds)
    return reached if reached.rank >= before.rank else min(before, _reached(value + margin, thresholds), key=_rank)


def assess_machine(
    machine: MachineReading | None, metrics: Mapping[str, float], now: datetime, settings: HealthSettings
) -> MachineReading:
    """Return a machine with new metrics. Resources without a new metric keep their level."""
    before = machine.levels if machine else {}
    levels = before | {
        metric: level_of(value, thresholds_of(metric, settings), before.get(metric, HealthLevel.GREEN), settings.margin)
        for metric, value in metrics.items()
    }
    known = machine.metrics if machine else {}
    # The keys of the new metrics come first, and their values replace the known ones.
    return MachineReading(at=now, metrics={**metrics, **known, **metrics}, levels=levels)


def next_health(
    before: HealthState,
    name: str,
    metrics: Mapping[str, float],
    now: datetime,
    settings: HealthSettings,
    yellow_reason: str = "",
) -> tuple[HealthState, list[InternalEvent]]:
    """Return the health after measuring one machine, and the internal events to log.

    If there is a `yellow_reason`, the level is at least yellow. A machine without recent readings does not count.
    """
    known = before.machines.get(name)
    seen = assess_machine(known, metrics, now, settings)
    stale = now - timedelta(seconds=settings.stale_seconds)
    machines = {each: state for each, state in before.machines.items() if state.at >= stale and each != name}
    machines[name] = seen
    level, reason, worst = _worst(machines)
    stop_level, stop_reason, _ = _worst(machines, without=CPU)
    if yellow_reason and level is HealthLevel.GREEN:
        level, reason = HealthLevel.YELLOW, yellow_reason
    if yellow_reason and stop_level is HealthLevel.GREEN:
        stop_level, stop_reason = HealthLevel.YELLOW, yellow_reason
    slot_share, slot_reason = _slot_share(machines)
    new_events: list[InternalEvent] = list(_warnings(known, seen, settings))
    if level is not before.level:
        new_events.append(HealthChanged(from_=before.level, to=level, reason=reason))
    return HealthState(
        level=level,
        reason=reason,
        stop_level=stop_level,
        stop_reason=stop_reason,
        slot_share=slot_share,
        slot_reason=slot_reason,
        at=now,
        metrics=machines[worst].metrics,
        machines=machines,
    ), new_events


def _warnings(before: MachineReading | None, after: MachineReading, settings: HealthSettings) -> list[ResourceWarned]:
    """Return a warning for each resource whose level has risen."""
    risen = [
        (metric, level)
        for metric, level in after.levels.items()
        if level.rank > (before.levels.get(metric, HealthLevel.GREEN) if before else HealthLevel.GREEN).rank
    ]
    return [
        ResourceWarned(metric=metric, value=after.metrics[metric], threshold=threshold)
        for metric, level in risen
        for threshold, risen_to in thresholds_of(metric, settings)
        if risen_to is level
    ]


def _slot_share(machines: Mapping[str, MachineReading]) -> tuple[float, str]:
    """Return the share of the slots that the processors of all machines leave, and the highest pressure."""
    shares = [_SLOT_SHARES[state.levels.get(CPU, HealthLevel.GREEN)] for state in machines.values()]
    highest = max(state.metrics.get(CPU, 0.0) for state in machines.values())
    return sum(shares) / len(shares), f"{CPU}: {highest:.0f}"


def _worst(machines: Mapping[str, MachineReading], without: str = "") -> tuple[HealthLevel, str, str]:
    """Return the worst level, its resource and value, and the machine. `without` is a resource that does not count."""
    all_levels = [
        (level.rank, state.metrics[metric], metric, level, name)
        for name, state in machines.items()
        for metric, level in state.levels.items()
        if metric != without
    ]
    if not all_levels:
        return HealthLevel.GREEN, "", next(iter(machines))
    _, value, metric, level, name = max(all_levels, key=lambda each: each[:2])
    return level, f"{metric}: {value:.0f}", name


def _reached(value: float, thresholds: Thresholds) -> HealthLevel:
    return max((level for threshold, level in thresholds if value >= threshold), key=_rank, default=HealthLevel.GREEN)


def _rank(level: HealthLevel) -> int:
    return level.rank

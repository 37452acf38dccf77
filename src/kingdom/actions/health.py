"""Read the health of the machines."""

from kingdom.bus.port import Transaction
from kingdom.court.chamberlain.health import HealthLevel, HealthState, MachineReading, thresholds_of
from kingdom.court.chamberlain.records import HEALTH, load_or_create
from kingdom.court.chamberlain.settings import HealthSettings
from kingdom.court.records import CURRENT
from kingdom.views.health import MachineUse, ResourceUse


async def read_machines(transaction: Transaction, settings: HealthSettings) -> list[MachineUse]:
    """Return the last measured use of each machine, in the order of their names."""
    _, health = await load_or_create(transaction, HEALTH, CURRENT, HealthState)
    return [_to_machine(name, reading, settings) for name, reading in sorted(health.machines.items())]


def _to_machine(name: str, reading: MachineReading, settings: HealthSettings) -> MachineUse:
    resources = [
        ResourceUse(
            name=metric,
            percent=percent,
            level=reading.levels.get(metric, HealthLevel.GREEN),
            thresholds={level: value for value, level in thresholds_of(metric, settings)},
        )
        for metric, percent in reading.metrics.items()
    ]
    return MachineUse(name=name, at=reading.at, resources=resources)

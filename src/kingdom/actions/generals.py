"""List and find Generals, and try changes of their rules on past events."""

from datetime import datetime
from pathlib import Path

import msgspec

from kingdom.bus.port import Bus
from kingdom.court.king.simulation import RoutingSimulation, compare_stored_events
from kingdom.court.package import Package
from kingdom.court.package_files import GENERAL_FILE, LoadedPackages, load_packages, read_general
from kingdom.errors import Misconfigured, NotFound
from kingdom.views.generals import ListedGeneral, ListedGenerals

# A simulation for a person who waits for it compares at most this many events.
_SIMULATED_MAX = 20_000


def to_listed_generals(directory: Path, loaded: LoadedPackages) -> ListedGenerals:
    """Return the Generals of a directory as lists show them."""
    generals = [
        ListedGeneral(
            name=package.name,
            description=package.general.description,
            subscribes=[each.type for each in package.general.subscribes],
            schedules=[each.name for each in package.general.schedules],
            works=work_names(package),
            directory=package.directory,
        )
        for package in loaded.packages
    ]
    return ListedGenerals(directory=str(directory), generals=generals, broken=loaded.broken)


def find_general(directory: Path, name: str, *, accepts_strangers: bool) -> Package:
    """Return a General by its name, or raise an error that lists all Generals."""
    loaded = load_packages(directory, accepts_strangers=accepts_strangers)
    for package in loaded.packages:
        if package.name == name:
            return package
    for broken in loaded.broken:
        if broken.name == name:
            raise Misconfigured(f"{name} is broken: {broken.reason}")
    there = ", ".join(package.name for package in loaded.packages) or "none"
    raise NotFound(
        f"there is no General {name!r} in {directory}; there are: {there}; `kingdom general install` adds one"
    )


def work_names(package: Package) -> list[str]:
    """Return the names of the Works of a General."""
    return [work.name for work in package.template.works]


async def simulate_change(
    bus: Bus, loaded: LoadedPackages, name: str, definition: str, since: datetime
) -> RoutingSimulation:
    """Compare how past events were routed with how they would be routed after a change of a general.yaml."""
    changed = read_general(definition, f"{name}/{GENERAL_FILE}")
    if changed.name != name:
        raise Misconfigured(f"the name is {changed.name!r}: keep the name {name}, or simulate on the command line")
    if name not in [package.name for package in loaded.packages]:
        raise NotFound(f"there is no General {name!r}, or its package is broken; `kingdom general list` shows all")
    packages = [
        msgspec.structs.replace(package, general=changed) if package.name == name else package
        for package in loaded.packages
    ]
    async with bus.transaction() as transaction:
        return await compare_stored_events(transaction, packages, since, events_max=_SIMULATED_MAX)

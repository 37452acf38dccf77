"""List and find Generals."""

from pathlib import Path

from kingdom.court.package import Package
from kingdom.court.package_files import LoadedPackages, load_packages
from kingdom.errors import Misconfigured, NotFound
from kingdom.views.generals import ListedGeneral, ListedGenerals


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

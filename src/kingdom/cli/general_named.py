"""Which General a command means, and where it is."""

from pathlib import Path
from typing import Annotated

import typer

from kingdom.bootstrap import generals_directory_of
from kingdom.cli.command import Call
from kingdom.court.package import Package
from kingdom.court.package_files import load_packages
from kingdom.errors import Misconfigured, NotFound

GeneralName = Annotated[str, typer.Argument(metavar="NAME", help="The name of a General, as gen-pr.")]
GeneralsDirectory = Annotated[
    str, typer.Option("--directory", help="Where the Generals are; else where the settings or the store have them.")
]


def generals_place(call: Call, directory: str) -> Path:
    """Return where the Generals are, unless a directory is named where they are."""
    return Path(directory) if directory else generals_directory_of(call.settings, call.part("generals"))


def hears_strangers(call: Call) -> bool:
    """Tell whether events of any GitHub repository are taken, so that Generals must name their repositories."""
    return call.part("sentinel").sentinel.hears_strangers


def named_package(call: Call, name: str, directory: str) -> Package:
    """Return the General with a name, or say which ones there are."""
    place = generals_place(call, directory)
    loaded = load_packages(place, hears_strangers=hears_strangers(call))
    for package in loaded.packages:
        if package.name == name:
            return package
    for broken in loaded.broken:
        if broken.name == name:
            raise Misconfigured(f"{name} is broken: {broken.reason}")
    there = ", ".join(package.name for package in loaded.packages) or "none"
    raise NotFound(f"there is no General {name!r} in {place}; there is {there}: `kingdom general install` adds one")

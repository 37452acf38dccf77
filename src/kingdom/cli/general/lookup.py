"""Finds the Generals that a command names."""

from pathlib import Path
from typing import Annotated

import typer

from kingdom.actions.generals import find_general
from kingdom.bootstrap import generals_directory_of
from kingdom.cli.framework.command import CommandCall
from kingdom.court.package import Package

GeneralName = Annotated[str, typer.Argument(metavar="NAME", help="The name of a General, such as gen-pr.")]
GeneralsDirectory = Annotated[
    str,
    typer.Option(
        "--directory", help="The folder of the Generals; by default the folder in the settings or in the store."
    ),
]


def generals_directory(call: CommandCall, directory: str) -> Path:
    """Return the given directory, or the configured directory of the Generals."""
    return Path(directory) if directory else generals_directory_of(call.settings, call.part("generals"))


def accepts_strangers(call: CommandCall) -> bool:
    """Return whether events of any GitHub repository are accepted. If so, Generals must name their repositories."""
    return call.part("sentinel").sentinel.accepts_strangers


def named_package(call: CommandCall, name: str, directory: str) -> Package:
    """Return a General by its name, or raise an error that lists all Generals."""
    place = generals_directory(call, directory)
    return find_general(place, name, accepts_strangers=accepts_strangers(call))

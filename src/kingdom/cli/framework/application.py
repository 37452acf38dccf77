"""Loads the application that a user names as MODULE:OBJECT."""

import sys
import traceback
from importlib import import_module
from pathlib import Path

from kingdom.bus.app import Application
from kingdom.errors import Misconfigured


def load_application(name: str) -> Application:
    """Import the module from the Python path or the current directory, and return its object."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise Misconfigured(f"{name!r} is not an application: write MODULE:OBJECT, such as orders:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise Misconfigured(f"{module_name} cannot be imported: {error}; install it") from error
        raise Misconfigured(f"there is no module {error.name!r} in {here} or on the Python path") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise Misconfigured(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}"
            f" ({Path(place.filename).name}, line {place.lineno})"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise Misconfigured(f"{module_name} has no {path!r}: declare it as an Application there")
        found = getattr(found, part)
    if not isinstance(found, Application):
        raise Misconfigured(f"{name} is a {type(found).__name__}, not a kingdom.bus.Application")
    return found

"""An agent that does what it must not: `python hostile_agent.py TARGETS NAME` tries one thing, and says how it went.

It runs by itself, in a sandbox where nothing of the tests can be imported.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

# What it does lies beside this file, which is run as a program.
sys.path.insert(0, str(Path(__file__).parent))

TRICKS: dict[str, Callable[[dict[str, str]], object]] = {
    name: trick
    for module in map(import_module, ("tricks_files", "tricks_network", "tricks_processes"))
    for name, trick in vars(module).items()
    if callable(trick) and getattr(trick, "__module__", "") == module.__name__ and not name.startswith("_")
}


def main(targets: str, name: str) -> None:
    """Try a trick; one that returns has succeeded, and tells what it has got."""
    said: dict[str, object]
    try:
        said = {"succeeded": True, "evidence": str(TRICKS[name](json.loads(targets)))}
    except TimeoutError as error:
        # Nobody said no: a slow machine must not pass for a strong wall.
        said = {"succeeded": None, "evidence": str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever stops a trick is what is wanted
        said = {"succeeded": False, "evidence": "".join(traceback.format_exception_only(error)).strip()}
    sys.stdout.write("\n" + json.dumps(said) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

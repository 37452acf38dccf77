"""A hostile agent: `python hostile_agent.py TARGETS NAME` tries one trick and prints the result.

It is self-contained, because the sandbox cannot import the tests.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

# The tricks are beside this file, which runs as a program.
sys.path.insert(0, str(Path(__file__).parent))

TRICKS: dict[str, Callable[[dict[str, str]], object]] = {
    name: trick
    for module in map(import_module, ("tricks_files", "tricks_network", "tricks_processes"))
    for name, trick in vars(module).items()
    if callable(trick) and getattr(trick, "__module__", "") == module.__name__ and not name.startswith("_")
}


def main(targets: str, name: str) -> None:
    """Try a trick; it succeeds if it returns, and its return value is the evidence."""
    finding: dict[str, object]
    try:
        finding = {"succeeded": True, "evidence": str(TRICKS[name](json.loads(targets)))}
    except TimeoutError as error:
        # A timeout is not a refusal: a slow machine must not look like a defense.
        finding = {"succeeded": None, "evidence": str(error)}
    except BaseException as error:  # noqa: BLE001 - any error that stops a trick counts
        finding = {"succeeded": False, "evidence": "".join(traceback.format_exception_only(error)).strip()}
    sys.stdout.write("\n" + json.dumps(finding) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""`python -m tests.acceptance.limits LIMITS …`: run `kingdom` with other time limits, given as JSON in seconds."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from kingdom.cli.main import main
from tests.patience import PATIENCE_SECONDS


def unhurried_doctor(seconds: float = PATIENCE_SECONDS, reading: float = PATIENCE_SECONDS) -> dict[str, Any]:
    """Return functions that replace those of the doctor: checks, and reading of settings, with longer time limits."""
    from kingdom.doctor.checks import all_checks  # noqa: PLC0415 - load only the command whose limit changes
    from kingdom.doctor.context_reader import read_context  # noqa: PLC0415

    return {
        "all_checks": lambda: [replace(check, limit=timedelta(seconds=seconds)) for check in all_checks()],
        "read_context": partial(read_context, limit=timedelta(seconds=reading)),
    }


def _reading(seconds: float) -> None:
    from kingdom.cli.setup import doctor  # noqa: PLC0415

    vars(doctor).update(unhurried_doctor(reading=seconds))


def _last_wait(seconds: float) -> None:
    from kingdom.cli.framework import long_running  # noqa: PLC0415

    long_running._LAST_WAIT_SECONDS = seconds


def _unhandled(seconds: float) -> None:
    from kingdom.cli.workflow import follow  # noqa: PLC0415

    follow._UNHANDLED_SECONDS = seconds


# The limits of: reading settings in the doctor, waiting after a second signal, and waiting for an event to be handled.
_LIMITS: dict[str, Callable[[float], None]] = {"reading": _reading, "last_wait": _last_wait, "unhandled": _unhandled}


def command(**limits: float) -> list[str]:
    """Return the command that starts `kingdom` with other limits, from the root of the repository."""
    return [sys.executable, "-m", __spec__.name, json.dumps(limits)]


if __name__ == "__main__":
    for name, limit in json.loads(sys.argv.pop(1)).items():
        _LIMITS[name](limit)
    main()

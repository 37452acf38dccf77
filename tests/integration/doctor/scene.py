"""Write a realm's settings, and run chosen checks on it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from kingdom.clock import utc_now
from kingdom.doctor.check import CheckReport, run_checks
from kingdom.doctor.checks import all_checks
from kingdom.doctor.context_reader import read_context
from tests.patience import PATIENCE_SECONDS

PATIENCE = timedelta(seconds=PATIENCE_SECONDS)


def write_settings(directory: Path, **document: Any) -> Path:
    file = directory / "kingdom.yaml"
    file.write_text(yaml.safe_dump({"database_url": "file:realm", **document}))
    return file


def write_program(directory: Path, name: str, script: str) -> Path:
    """Write an executable script."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


async def look(
    *names: str,
    config: Path | None = None,
    url: str | None = None,
    clock: Callable[[], datetime] = utc_now,
    limit: timedelta = PATIENCE,
    reading_limit: timedelta = PATIENCE,
    offline: bool = False,
    **changes: Any,
) -> dict[str, CheckReport]:
    """Run the checks of these names, or all of them, and return their reports."""
    context = await read_context(config=config, database_url=url, limit=reading_limit)
    checks = [replace(check, limit=limit) for check in all_checks() if not names or check.name in names]
    reports = await run_checks(checks, replace(context, clock=clock, **changes), offline=offline)
    assert not names or [report.name for report in reports] == [c.name for c in checks if c.name in names]
    return {report.name: report for report in reports}


async def look_at(name: str, **about: Any) -> CheckReport:
    """Run one check and return its report; a problem must have a fix of one line."""
    report = (await look(name, **about))[name]
    assert bool(report.fix) == (report.status in ("warn", "fail")), report
    assert "\n" not in report.found + report.fix
    return report

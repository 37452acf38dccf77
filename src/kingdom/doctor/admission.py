"""Reading the settings of a realm so that nothing in them can keep the others from being looked at."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from kingdom.doctor.check import in_thread
from kingdom.doctor.patient import Patient
from kingdom.errors import KingdomError
from kingdom.realm import Realm, find_realm_file, read_realm, store_named_in
from kingdom.settings import DEFAULT_URL, Settings

READING_LIMIT = timedelta(seconds=5)
_T = TypeVar("_T")


async def admit(
    config: Path | None, *, database_url: str | None, schema: str | None, limit: timedelta = READING_LIMIT
) -> Patient:
    """Return who is to be examined: what a command line says, then the environment, then the file of settings."""
    environment_trouble = ""
    try:
        settings = Settings.read(database_url=database_url, schema=schema)
    except KingdomError as error:
        environment_trouble = str(error)
        settings = Settings(database_url=database_url or DEFAULT_URL, store_is_named=database_url is not None)
    file = config or find_realm_file()
    realm, file_trouble = await _tried(lambda: read_realm(file)[0], limit)
    named = realm.database_url if realm else ""
    if file and file_trouble:
        # What is wrong may stand elsewhere in the file.
        named = (await _tried(lambda: store_named_in(file), limit))[0] or ""
    is_elsewhere = bool(named and settings.store_is_named and not database_url and named != settings.database_url)
    if named and not settings.store_is_named:
        settings = replace(settings, database_url=named)
    return Patient(
        settings=settings,
        file=file,
        realm=realm or Realm(),
        beside=file.parent if file else Path(),
        file_trouble=file_trouble,
        environment_trouble=environment_trouble,
        is_elsewhere=is_elsewhere,
    )


async def _tried(read: Callable[[], _T], limit: timedelta) -> tuple[_T | None, str]:
    """Return what was read, or why it could not be."""
    try:
        async with asyncio.timeout(limit.total_seconds()):
            return await in_thread(read), ""
    except TimeoutError:
        return None, f"it could not be read within {limit.total_seconds():g} s: it or a secret that it names is no file"
    except (KingdomError, OSError, RecursionError) as error:
        return None, str(error)

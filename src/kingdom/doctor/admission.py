"""Reading the settings of a realm so that nothing in them can keep the others from being looked at."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from kingdom.doctor.check import in_thread
from kingdom.doctor.patient import Patient
from kingdom.errors import KingdomError
from kingdom.realm import Realm, read_part, read_realm
from kingdom.settings import DEFAULT_URL, Settings, find_realm_file

READING_LIMIT = timedelta(seconds=5)
# What is looked at even where the rest of the file cannot be read.
_PARTS = ("database_url", "generals", "soldiers")
_T = TypeVar("_T")


async def admit(
    *, config: Path | None, database_url: str | None, limit: timedelta = READING_LIMIT, **given: str | None
) -> Patient:
    """Return who is to be examined: what a command line says, then our variables, then the file of settings."""
    environment_trouble = ""
    file = config or find_realm_file()
    try:
        settings = Settings.read(file=file, database_url=database_url, **given)
    except KingdomError as error:
        environment_trouble = str(error)
        settings = Settings(database_url=database_url or DEFAULT_URL, file=file, store_is_named=bool(database_url))
    realm, file_trouble = await _tried(lambda: read_realm(file), limit)
    if realm is None:
        # What is wrong may stand elsewhere in the file.
        parts = [_tried(partial(read_part, file, name, secrets=True), limit) for name in _PARTS]
        found = zip(_PARTS, await asyncio.gather(*parts), strict=True)
        realm = Realm(**{name: getattr(part, name) for name, (part, _) in found if part})
    named = realm.database_url
    is_elsewhere = bool(named and settings.store_is_named and not database_url and named != settings.database_url)
    if named and not settings.store_is_named:
        settings = replace(settings, database_url=named)
    return Patient(
        settings=settings,
        realm=realm,
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
    except (KingdomError, OSError) as error:
        return None, str(error)

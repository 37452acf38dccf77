"""Read the settings of a realm. One broken part does not prevent the checks of the other parts."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from kingdom.doctor.check import run_in_thread
from kingdom.doctor.context import CheckContext
from kingdom.errors import KingdomError
from kingdom.realm import Realm, read_part, read_realm
from kingdom.settings import DEFAULT_URL, Settings, find_realm_file

READING_LIMIT = timedelta(seconds=5)
# The parts to read one by one if the file as a whole cannot be read.
_PARTS = ("database_url", "generals", "soldiers")
_T = TypeVar("_T")


async def read_context(
    *, config: Path | None, database_url: str | None, limit: timedelta = READING_LIMIT, **given: str | None
) -> CheckContext:
    """Read the context of the checks. The command line takes precedence over the environment and the settings file."""
    environment_error = ""
    file = config or find_realm_file()
    try:
        settings = Settings.read(file=file, database_url=database_url, **given)
    except KingdomError as error:
        environment_error = str(error)
        settings = Settings(database_url=database_url or DEFAULT_URL, file=file, store_is_named=bool(database_url))
    realm, file_error = await _try_reading(lambda: read_realm(file), limit)
    if realm is None:
        # The error may be in one part of the file, so read the other parts.
        parts = [_try_reading(partial(read_part, file, name, secrets=True), limit) for name in _PARTS]
        found = zip(_PARTS, await asyncio.gather(*parts), strict=True)
        realm = Realm(**{name: getattr(part, name) for name, (part, _) in found if part})
    file_url = realm.database_url
    is_overridden = bool(
        file_url and settings.store_is_named and not database_url and file_url != settings.database_url
    )
    if file_url and not settings.store_is_named:
        settings = replace(settings, database_url=file_url)
    return CheckContext(
        settings=settings,
        realm=realm,
        file_error=file_error,
        environment_error=environment_error,
        is_overridden=is_overridden,
    )


async def _try_reading(read: Callable[[], _T], limit: timedelta) -> tuple[_T | None, str]:
    """Return the value, or None and the reason why it cannot be read."""
    try:
        async with asyncio.timeout(limit.total_seconds()):
            return await run_in_thread(read), ""
    except TimeoutError:
        seconds = f"{limit.total_seconds():g} s"
        return None, f"reading took longer than {seconds}: the file, or a secret that it names, is not a regular file"
    except (KingdomError, OSError) as error:
        return None, str(error)

"""The realm that the checks inspect, as far as its settings can be read."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kingdom.bootstrap import directory_of
from kingdom.clock import utc_now
from kingdom.errors import Misconfigured
from kingdom.realm import Realm
from kingdom.settings import Settings

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """A realm and its location; `file_error` and `environment_error` say why its settings cannot be read.

    Settings that cannot be read have their defaults, so that the other checks can still run.
    """

    settings: Settings
    realm: Realm = field(default_factory=Realm)
    file_error: str = ""
    environment_error: str = ""
    # True if KINGDOM_DATABASE_URL names another store than `database_url` in the file; the variable takes precedence.
    is_overridden: bool = False
    clock: Callable[[], datetime] = utc_now
    _results: dict[str, "asyncio.Future[Any]"] = field(default_factory=dict)

    @property
    def store_directory(self) -> Path | None:
        """Return the directory of a file store, or None for a database or an invalid URL."""
        try:
            return directory_of(self.settings.database_url)
        except Misconfigured:
            return None

    @property
    def data_directory(self) -> Path:
        """Return the directory of logs and checkouts."""
        return self.store_directory or self.settings.base_directory / "realm"

    async def compute_once(self, name: str, compute: Callable[[], Awaitable[_T]]) -> _T:
        """Compute a value only once, although several checks need it."""
        if name not in self._results:
            self._results[name] = asyncio.ensure_future(compute())
        result: _T = await asyncio.shield(self._results[name])
        return result

    def describe_source(self, *path: str) -> str:
        """Describe where a secret of the settings file comes from; the secret itself is never shown."""
        value = self.read_value(*path)
        if isinstance(value, str) and value.startswith("env:"):
            return f"the environment variable {value.removeprefix('env:')}"
        if isinstance(value, str) and value.startswith("file:"):
            return f"the file {self.settings.base_directory / value.removeprefix('file:')}"
        return f"{'.'.join(path)} of {self.settings.file}"

    def read_value(self, *path: str) -> Any:
        """Return the raw value at a path of the settings file."""
        value: Any = {}
        if self.settings.file is not None and not self.file_error:
            value = yaml.safe_load(self.settings.file.read_text(encoding="utf-8"))
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

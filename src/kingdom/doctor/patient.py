"""Who is examined: a realm, as far as its settings can be read."""

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
class Patient:
    """A realm and where it is; `file_trouble` and `environment_trouble` tell why its settings cannot be read.

    What cannot be read has its default, so that everything else can still be looked at.
    """

    settings: Settings
    realm: Realm = field(default_factory=Realm)
    file_trouble: str = ""
    environment_trouble: str = ""
    # A variable names another store than the file, and comes first.
    is_elsewhere: bool = False
    clock: Callable[[], datetime] = utc_now
    _asked: dict[str, "asyncio.Future[Any]"] = field(default_factory=dict)

    @property
    def store(self) -> Path | None:
        """Return the directory of a store of files; nothing where it is a database, or its name makes no sense."""
        try:
            return directory_of(self.settings.database_url)
        except Misconfigured:
            return None

    @property
    def directory(self) -> Path:
        """Return the directory in which logs and checkouts lie."""
        return self.store or self.settings.beside / "realm"

    async def once(self, name: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask something that several checks want to know, once for all of them."""
        if name not in self._asked:
            self._asked[name] = asyncio.ensure_future(ask())
        answer: _T = await asyncio.shield(self._asked[name])
        return answer

    def source_of(self, *path: str) -> str:
        """Return where the file says that a secret is, as a person would look for it; never the secret."""
        said = self.said_at(*path)
        if isinstance(said, str) and said.startswith("env:"):
            return f"the environment variable {said.removeprefix('env:')}"
        if isinstance(said, str) and said.startswith("file:"):
            return f"the file {self.settings.beside / said.removeprefix('file:')}"
        return f"{'.'.join(path)} of {self.settings.file}"

    def said_at(self, *path: str) -> Any:
        """Return what stands in the file at a place, as it is written there."""
        said: Any = {}
        if self.settings.file is not None and not self.file_trouble:
            said = yaml.safe_load(self.settings.file.read_text(encoding="utf-8"))
        for step in path:
            said = said.get(step) if isinstance(said, dict) else None
        return said

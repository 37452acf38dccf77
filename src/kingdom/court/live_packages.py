"""The current Generals: packages are reloaded when their files change, so no role needs a restart."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import structlog

from kingdom.court.package import Package
from kingdom.court.package_files import LoadedPackages, load_packages

_CHECK_SECONDS = 2.0
_log = structlog.get_logger("kingdom.court")


class LivePackages:
    """The packages in a directory. A broken package is logged at each reload, and disabled until it is fixed.

    `accepts_strangers` means that events of any GitHub repository arrive.
    """

    def __init__(self, directory: Path, *, accepts_strangers: bool = False) -> None:
        self.directory = directory
        self._accepts_strangers = accepts_strangers
        self._loaded = LoadedPackages()
        self._seen: tuple[tuple[str, int, int], ...] | None = None
        self._next_check = 0.0

    def all(self) -> Sequence[Package]:
        """Return every usable package."""
        self._reload_if_changed()
        return self._loaded.packages

    def by_name(self) -> Mapping[str, Package]:
        """Return every usable package by the name of its General."""
        return {package.name: package for package in self.all()}

    def last_loaded(self) -> Mapping[str, bool]:
        """Return the names of the Generals, and whether each is usable, as last read. Any thread may call this."""
        loaded = self._loaded
        return {each.name: False for each in loaded.broken} | {each.name: True for each in loaded.packages}

    def _reload_if_changed(self) -> None:
        if time.monotonic() < self._next_check:
            return
        seen = tuple(sorted(_fingerprints(self.directory)))
        if seen != self._seen:
            loaded = load_packages(self.directory, accepts_strangers=self._accepts_strangers)
            self._seen, self._loaded = seen, loaded
            _log.info("loaded the Generals", names=[package.name for package in self._loaded.packages])
            for broken in self._loaded.broken:
                _log.error("a General is disabled: its package is broken", general=broken.name, reason=broken.reason)
        # Set last, so that a failed check is repeated at once.
        self._next_check = time.monotonic() + _CHECK_SECONDS


def _fingerprints(directory: Path) -> Iterator[tuple[str, int, int]]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            # The notes in `memory` may change without a reload, because each assignment reads them again.
            if path.parent.name == "memory":
                continue
            try:
                status = path.stat()
            except OSError:
                continue
            yield str(path), status.st_mtime_ns, status.st_size

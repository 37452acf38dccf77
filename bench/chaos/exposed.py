"""Expose a process under test to faults of its environment: the clock, the disk, and the network to the server."""

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from psycopg.conninfo import make_conninfo

from bench.chaos.controls import Controls, shift_clock
from bench.chaos.variants import replace
from kingdom.backends.files.journal.journal import Journal
from kingdom.backends.files.system import disk
from kingdom.backends.files.system.disk import Disk
from kingdom.bootstrap import open_bus
from kingdom.verify import process
from kingdom.verify.process_config import ProcessConfig
from kingdom.verify.script import die

_CHECKPOINT_THREAD = "kingdom-checkpoint"
# The points of a checkpoint at which a process can die.
_BEFORE_SYNC, _AFTER_SYNC, _AFTER_REMOVAL = 1, 2, 3
# Operations of `Disk` that fail on a full disk, on a read-only disk, and on a disk that cannot sync.
_GROWING = ("create", "append", "stamp", "make_directory", "write")
_CHANGING = (*_GROWING, "rename", "unlink", "truncate", "open_for_appending")
_SYNCING = ("sync_file", "sync_directory", "sync_everything")


def expose(controls: Controls, backend: str) -> None:
    """Apply the controls of a bench to this process."""
    run_process = process.run_process

    async def run_exposed(config: ProcessConfig) -> None:
        slot = config.name.split(".")[0]
        shift_clock(controls, slot)
        await run_process(_EXPOSED[backend](controls, slot, config))

    replace(process, "run_process", run_exposed)


def _expose_on_postgres(controls: Controls, slot: str, config: ProcessConfig) -> ProcessConfig:
    """Connect half of the processes through PgBouncer, half through the proxy, and steady ones directly."""
    direct = config.url
    if config.role == "steady":
        return config
    if int(slot.split("-")[1]) % 2:
        return msgspec.structs.replace(config, url=make_conninfo(direct, port=controls["proxy_port"]))
    replace(process, "open_bus", partial(open_bus, through_pgbouncer=True, listen_url=direct))
    return msgspec.structs.replace(config, url=make_conninfo(direct, port=controls["bouncer_port"]))


def _expose_on_files(controls: Controls, _slot: str, config: ProcessConfig) -> ProcessConfig:
    for code, operations in ((errno.ENOSPC, _GROWING), (errno.EIO, _SYNCING), (errno.EROFS, _CHANGING)):
        for operation in operations:
            replace(Disk, operation, _failing(controls, code, getattr(Disk, operation)))
    replace(disk, "_write_all", _cut_short(controls, disk._write_all))
    replace(Disk, "sync_everything", _deadly(controls, Disk.sync_everything, _BEFORE_SYNC, _AFTER_SYNC))
    replace(Journal, "remove_before", _deadly(controls, Journal.remove_before, None, _AFTER_REMOVAL))
    return config


def _failing(controls: Controls, code: int, operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that fails while the disk has this error."""

    def fail_or_do(*arguments: Any) -> Any:
        # `_cut_short` lets a write fail after half of its data.
        if controls["disk_error"] == code and operation.__name__ != "write":
            raise OSError(code, os.strerror(code))
        return operation(*arguments)

    fail_or_do.__name__ = operation.__name__
    return fail_or_do


def _cut_short(controls: Controls, write_all: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
    """Return a write that fails after half of its data on a full disk, and at once on a read-only disk."""

    def write_some(descriptor: int, data: bytes) -> None:
        code = controls["disk_error"]
        if code in (errno.ENOSPC, errno.EROFS):
            if code == errno.ENOSPC:
                write_all(descriptor, data[: len(data) // 2])
            raise OSError(code, os.strerror(code))
        write_all(descriptor, data)

    return write_some


def _deadly(
    controls: Controls, operation: Callable[..., Any], before: int | None, after: int | None
) -> Callable[..., Any]:
    """Return an operation before and after which the process can die."""

    def die_or_do(*arguments: Any) -> Any:
        _die_at(controls, before)
        result = operation(*arguments)
        _die_at(controls, after)
        return result

    return die_or_do


def _die_at(controls: Controls, point: int | None) -> None:
    if threading.current_thread().name == _CHECKPOINT_THREAD and controls["checkpoint_death"] == point:
        controls["checkpoint_death"] = 0
        die()


_EXPOSED: dict[str, Callable[[Controls, str, ProcessConfig], ProcessConfig]] = {
    "postgres": _expose_on_postgres,
    "kafka": _expose_on_postgres,
    "files": _expose_on_files,
}

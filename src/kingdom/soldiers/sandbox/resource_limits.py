"""Limit the resources of a process and its descendants: by control groups where possible, otherwise by rlimits.

A control group counts a process together with its descendants. An rlimit does not count processes of root. No rlimit is
set for memory, because it would also count memory that programs reserve and never use, as sanitizers do.
"""

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from kingdom.errors import ProgramFailed
from kingdom.soldiers.sandbox.sandbox import ResourceLimits

_PROCESSES = "cgroup.procs"
_NAME = "kingdom"
_POLL_SECONDS = 0.002


class ControlGroups:
    """The control groups of one program."""

    def __init__(self, groups: list[Path]) -> None:
        self._groups = groups

    def add(self, pid: int) -> None:
        """Put a process and its future descendants into the groups."""
        try:
            for group in self._groups:
                (group / _PROCESSES).write_text(str(pid))
        except OSError as error:
            raise ProgramFailed(f"the limits of a program could not be set: {error}") from error

    async def remove(self) -> None:
        """Remove the groups after their last process has ended."""
        for group in self._groups:
            while not _try_remove(group):  # noqa: ASYNC110 - the kernel sends no notification
                await asyncio.sleep(_POLL_SECONDS)


def create_control_groups(limits: ResourceLimits) -> tuple[ControlGroups, ResourceLimits]:
    """Create the control groups that this machine allows; return them and the limits left for rlimits."""
    name = f"{_NAME}-{os.getpid()}-{token_hex(4)}"
    groups: dict[Path, None] = {}
    for controller, amount, files, field in _cgroup_settings(limits):
        parent, is_v2 = _parent(controller)
        if parent is None:
            continue
        group = parent / name
        _remove_stale_groups(parent)
        try:
            group.mkdir(exist_ok=True)
            groups[group] = None
            (group / files[is_v2]).write_text(str(amount))
            _forbid_swap(group)
        except OSError:
            continue
        limits = replace(limits, **{field: None})
    return ControlGroups([*groups]), limits


def apply_rlimits(pid: int, limits: ResourceLimits) -> None:
    """Limit a process and its future descendants by rlimits."""
    amounts = {
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NPROC: limits.processes,
    }
    with suppress(ProcessLookupError):
        for kind, amount in amounts.items():
            if amount is not None:
                hard = resource.prlimit(pid, kind)[1]
                limit = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
                resource.prlimit(pid, kind, (limit, limit))
        # A core dump may contain secrets.
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def _cgroup_settings(limits: ResourceLimits) -> Iterator[tuple[str, int, tuple[str, str], str]]:
    """Yield for each limit its controller, its amount, its file names in cgroup v1 and v2, and its field."""
    if limits.memory_bytes is not None:
        yield "memory", limits.memory_bytes, ("memory.limit_in_bytes", "memory.max"), "memory_bytes"
    if limits.processes is not None:
        yield "pids", limits.processes, ("pids.max", "pids.max"), "processes"


def _remove_stale_groups(parent: Path) -> None:
    """Remove the groups of killed hosts; groups that still have processes stay."""
    for group in parent.glob(f"{_NAME}-*-*"):
        if not Path("/proc", group.name.split("-")[1]).exists():
            with suppress(OSError):
                group.rmdir()


def _try_remove(group: Path) -> bool:
    """Remove a group; return False if it is still busy, as it is for a moment after a process has ended."""
    try:
        group.rmdir()
    except OSError as error:
        return error.errno != errno.EBUSY or any(each.is_dir() for each in group.iterdir())
    return True


def _forbid_swap(group: Path) -> None:
    with suppress(OSError):
        if (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")


def _parent(controller: str) -> tuple[Path | None, bool]:
    """Return the group below which this process may create groups for a controller, and whether it is cgroup v2."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            mount = _mount("cgroup", controller)
            return (mount / path.lstrip("/"), False) if mount else (None, False)
        if not controllers and (mount := _mount("cgroup2", None)):
            group = mount / path.lstrip("/")
            if _delegates(group, controller):
                return group, True
    return None, False


def _mount(kind: str, controller: str | None) -> Path | None:
    for line in _lines(Path("/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        found, _, options = after.split(" ", 2)
        if found == kind and (controller is None or controller in options.split(",")):
            return Path(before.split(" ")[4])
    return None


def _delegates(group: Path, controller: str) -> bool:
    """Return whether child groups can use a controller; enable it for them if needed."""
    try:
        if controller not in (group / "cgroup.controllers").read_text().split():
            return False
        if controller not in (group / "cgroup.subtree_control").read_text().split():
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []

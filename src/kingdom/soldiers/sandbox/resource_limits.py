"""Holding a process and all that it starts to limits: by a control group where one can be made, else by rlimits.

A group counts a process with everything that it starts. An rlimit does not count the processes of root, and none is
set for memory: what programs reserve without using it, as sanitizers do, would count too.
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
    """The control groups that were made for one program."""

    def __init__(self, groups: list[Path]) -> None:
        self._groups = groups

    def take(self, pid: int) -> None:
        """Put a process, with all that it will start, into the groups."""
        try:
            for group in self._groups:
                (group / _PROCESSES).write_text(str(pid))
        except OSError as error:
            raise ProgramFailed(f"a program could not be put under its limits: {error}") from error

    async def remove(self) -> None:
        """Remove the groups once their last process is gone."""
        for group in self._groups:
            while not _is_removed(group):  # noqa: ASYNC110 - the kernel tells of no change
                await asyncio.sleep(_POLL_SECONDS)


def create_control_groups(limits: ResourceLimits) -> tuple[ControlGroups, ResourceLimits]:
    """Make control groups as far as this machine lets us; the limits that are left must be field by rlimits."""
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
    """Limit a process, and each that it will start, by rlimits."""
    amounts = {
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NPROC: limits.processes,
    }
    with suppress(ProcessLookupError):
        for kind, amount in amounts.items():
            if amount is not None:
                most = resource.prlimit(pid, kind)[1]
                least = amount if most == resource.RLIM_INFINITY else min(amount, most)
                resource.prlimit(pid, kind, (least, least))
        # What a program leaves when it crashes may hold what it knew.
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def _cgroup_settings(limits: ResourceLimits) -> Iterator[tuple[str, int, tuple[str, str], str]]:
    """Yield per limit: its controller, the amount, its file in the first and second kind of groups, and its field."""
    if limits.memory_bytes is not None:
        yield "memory", limits.memory_bytes, ("memory.limit_in_bytes", "memory.max"), "memory_bytes"
    if limits.processes is not None:
        yield "pids", limits.processes, ("pids.max", "pids.max"), "processes"


def _remove_stale_groups(parent: Path) -> None:
    """Remove the groups of hosts that were killed; those that have processes still cannot be."""
    for group in parent.glob(f"{_NAME}-*-*"):
        if not Path("/proc", group.name.split("-")[1]).exists():
            with suppress(OSError):
                group.rmdir()


def _is_removed(group: Path) -> bool:
    """Remove a group; tell whether it is gone, or stays for good: a process that has ended keeps it for a moment."""
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
    """Return the group in which this process may make others for a controller, and whether it is of the second kind."""
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
    """Tell whether groups inside of this one have a controller; none of its processes may be in itself for that."""
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

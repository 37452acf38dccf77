"""This machine: its boot, its clock, its identity and its filesystems."""

import json
import os
import platform
import time
from contextlib import suppress
from pathlib import Path

from kingdom.backends.files.system.disk import Disk
from kingdom.errors import Misconfigured

_MOUNTS = Path("/proc/self/mountinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Where locks, renames or change notices depend on another machine.
_REMOTE = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "smb2",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.glusterfs",
        "lustre",
        "gpfs",
        "ocfs2",
        "gfs2",
        "beegfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.rclone",
        "vboxsf",
        "vmhgfs",
        "fuse.vmhgfs-fuse",
        "prl_fs",
        "davfs",
        "fuse.davfs2",
    ]
)


def boot_id() -> str:
    """Return what changes whenever this machine starts anew; empty where that cannot be known."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def boot_clock() -> float:
    """Return seconds on a clock that all processes share and nobody sets, asleep or awake."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def refuse_remote(root: str) -> None:
    """Refuse a directory whose filesystem is shared with other machines."""
    kind = _filesystem(os.path.realpath(root))
    if kind in _REMOTE:
        raise Misconfigured(
            f"{root} lies on a {kind} filesystem, where locks and renames depend on another machine:"
            " choose a local directory, or PostgreSQL for several hosts"
        )


def refuse_other_host(path: str, disk: Disk) -> None:
    """Refuse a store that belongs to another machine; the first one to hold it writes its name down."""
    own = {"machine": _machine_id(), "name": platform.node()}
    # An empty one is what a loss of power leaves of a file that was just made.
    if not os.path.exists(path) or not os.path.getsize(path):
        disk.create(f"{path}.new", json.dumps(own).encode() + b"\n")
        disk.rename(f"{path}.new", path)
        return
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except ValueError:
        found = {}
    if found.get("machine") != own["machine"]:
        raise Misconfigured(
            f"this store belongs to the host {found.get('name', 'of an unreadable name')}, this one is {own['name']}:"
            f" one host at a time. If it has moved here for good and nothing runs there any more, remove {path}"
        )


def _machine_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError):
            if text := Path(path).read_text().strip():
                return text
    return platform.node()


def _filesystem(path: str) -> str:
    """Return the type of the filesystem that a path lies on; empty where that cannot be known."""
    best, kind = "", ""
    with suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            before, _, after = line.partition(" - ")
            mount = before.split()[4].replace("\\040", " ")
            inside = path == mount or path.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, after.split()[0]
    return kind

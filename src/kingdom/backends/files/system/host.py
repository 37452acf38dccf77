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
# Filesystems whose locks, renames or change notifications depend on another machine.
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
    """Return the id of this boot of the machine; empty if it is not available."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def boot_clock() -> float:
    """Return the seconds since boot. All processes share this clock; it is never set and counts suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def refuse_remote(root: str) -> None:
    """Refuse a directory on a filesystem that other machines share."""
    kind = _filesystem(os.path.realpath(root))
    if kind in _REMOTE:
        raise Misconfigured(
            f"{root} is on a {kind} filesystem, where locks and renames depend on another machine:"
            " use a local directory, or PostgreSQL for several hosts"
        )


def refuse_other_host(path: str, disk: Disk) -> None:
    """Refuse a store that belongs to another machine. The first machine that opens a store becomes its owner."""
    own = {"machine": _machine_id(), "name": platform.node()}
    # A power loss can leave an empty file.
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
            f"this store belongs to the host {found.get('name', '(unreadable)')}, and this host is {own['name']}:"
            f" only one host can use a store. If the store has moved here and nothing uses it there, remove {path}"
        )


def _machine_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError):
            if text := Path(path).read_text().strip():
                return text
    return platform.node()


def _filesystem(path: str) -> str:
    """Return the type of the filesystem of a path; empty if it is not available."""
    best, kind = "", ""
    with suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            before, _, after = line.partition(" - ")
            mount = before.split()[4].replace("\\040", " ")
            inside = path == mount or path.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, after.split()[0]
    return kind

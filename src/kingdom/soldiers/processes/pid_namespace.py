"""The first process of a pid namespace: find its pid, and wait for its end."""

import asyncio
import os

import msgspec

_CHUNK_BYTES = 1 << 16


class _NamespaceInfo(msgspec.Struct, rename="kebab"):
    child_pid: int


async def read_init_pid(info: int) -> int:
    """Return the pid of the namespace's init, or 0 if bubblewrap failed; `info` is a pipe from its `--info-fd`."""
    text = b""
    while not text.rstrip().endswith(b"}"):
        await wait_readable(info)
        if not (more := os.read(info, _CHUNK_BYTES)):
            return 0
        text += more
    return msgspec.json.decode(text, type=_NamespaceInfo).child_pid


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, or None if it has already ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


async def wait_readable(descriptor: int) -> None:
    """Wait until a descriptor is readable or at its end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)

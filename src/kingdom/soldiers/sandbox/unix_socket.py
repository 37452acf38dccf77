"""Create unix sockets through which a sandbox reaches the host."""

import os
import socket
from contextlib import suppress
from pathlib import Path


def private_listener(path: Path) -> socket.socket:
    """Return a socket bound to a path of any length; only the current user can connect to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o600)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener

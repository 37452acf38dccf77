"""A process on the host that has a secret and sends it to every client."""

import ctypes
import json
import os
import socket
import sys
import threading
from pathlib import Path

_IPC_CREATE_FOR_ALL = 0o1000 | 0o666


def main(folder: str) -> None:
    """Listen in every possible way, print the addresses, and wait for the end of the input."""
    secret = os.environ["HOST_SECRET"]
    network = socket.create_server(("127.0.0.1", 0))
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind(f"\0kingdom-victim-{os.getpid()}")
    hidden.listen()
    named = socket.socket(socket.AF_UNIX)
    named.bind(f"{folder}/victim")
    named.listen()
    for listener in (network, hidden, named):
        threading.Thread(target=_tell, args=(listener, secret), daemon=True).start()
    reported = {
        "victim_pid": os.getpid(),
        "victim_port": network.getsockname()[1],
        "victim_abstract": f"kingdom-victim-{os.getpid()}",
        "victim_socket": f"{folder}/victim",
        "victim_memory": _in_memory_of_all(secret),
    }
    sys.stdout.write(json.dumps(reported) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    ctypes.CDLL(None).shmctl(reported["victim_memory"], 0, None)
    Path(folder, "victim").unlink()


def _tell(listener: socket.socket, secret: str) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(secret.encode())


def _in_memory_of_all(secret: str) -> int:
    """Put the secret into System V shared memory and return its id."""
    library = ctypes.CDLL(None)
    library.shmat.restype = ctypes.c_void_p
    number = int(library.shmget(0, 4096, _IPC_CREATE_FOR_ALL))
    place = library.shmat(number, None, 0)
    ctypes.memmove(place, secret.encode(), len(secret))
    return number


if __name__ == "__main__":
    main(sys.argv[1])

"""The way out of a sandbox: whoever connects to a port on its loopback speaks to the gate of the house.

Run as a file: `python -I -S bridge.py PORT SOCKET ARGV…`. Once the port is open this process becomes the program, so
that its end is the end of the program; a process beside it carries the bytes.
"""

import os
import signal
import socket
import sys
import threading

_CHUNK = 1 << 16
_WAITING = 64


def main() -> None:
    """Open the port, leave the carrying to another process, and become the program."""
    port, gate, *argv = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=_WAITING)
    if child := os.fork():
        os.waitpid(child, 0)
        listener.close()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvp(argv[0], argv)  # noqa: S606 - the program is what this is for
        except OSError as error:
            sys.exit(f"{argv[0]}: {error}")
    # A session of its own and no child of the program: it neither hears the program's signals nor is waited for.
    os.setsid()
    if os.fork():
        os._exit(0)
    _close_files(listener.fileno())
    _carry_all(listener, gate)


def _close_files(kept: int) -> None:
    """Let go of the input and output of the program: its readers would wait for us."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.closerange(3, kept)
    os.closerange(kept + 1, kept + _WAITING)


def _carry_all(listener: socket.socket, gate: str) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(gate)
        except OSError:
            near.close()
            far.close()
            continue
        threading.Thread(target=_carry_both_ways, args=(near, far), daemon=True).start()


def _carry_both_ways(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = threading.Thread(target=_carry, args=(far, near), daemon=True)
        back.start()
        _carry(near, far)
        back.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes until there are no more, and tell so."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone: the other shall not wait for it.
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


if __name__ == "__main__":
    main()

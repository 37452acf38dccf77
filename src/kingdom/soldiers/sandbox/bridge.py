"""Forward ports on the loopback of a sandbox to unix sockets of the host.

Run as a file: `python -I -S bridge.py PORT=SOCKET,… ARGV…`. Once the ports are open, this process becomes the program,
so the caller gets the exit code of the program. A second process copies the bytes.
"""

import os
import signal
import socket
import sys
import threading

_CHUNK_BYTES = 1 << 16
_BACKLOG = 64


def main() -> None:
    """Open the ports, start the process that copies the bytes, and execute the program."""
    forwards, *argv = sys.argv[1:]
    targets = dict(forward.split("=", 1) for forward in forwards.split(","))
    listeners = {port: socket.create_server(("127.0.0.1", int(port)), backlog=_BACKLOG) for port in targets}
    if child := os.fork():
        os.waitpid(child, 0)
        for listener in listeners.values():
            listener.close()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvp(argv[0], argv)  # noqa: S606 - executing the program is the purpose
        except OSError as error:
            sys.exit(f"{argv[0]}: {error}")
    # The copying process has its own session and is not a child of the program. So the signals of the program do not
    # reach it, and the program does not wait for it.
    os.setsid()
    if os.fork():
        os._exit(0)
    _close_files({listener.fileno() for listener in listeners.values()})
    for port, listener in listeners.items():
        threading.Thread(target=_accept_connections, args=(listener, targets[port])).start()


def _close_files(kept: set[int]) -> None:
    """Close the standard streams of the program, so their readers do not wait for this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, first + _BACKLOG)


def _accept_connections(listener: socket.socket, target: str) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(target)
        except OSError:
            near.close()
            far.close()
            continue
        threading.Thread(target=_copy_both_ways, args=(near, far), daemon=True).start()


def _copy_both_ways(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until the source ends, then close the writing side of the target."""
    try:
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone, so the other side must not wait for it.
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


if __name__ == "__main__":
    main()

"""Start Python processes quickly: a fork server has imported everything already."""

import asyncio
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import time
from asyncio import StreamReader, StreamReaderProtocol
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import pytest

from kingdom.cli.main import main
from tests.patience import PATIENCE_SECONDS

_ROOT = Path(__file__).parents[1]
_PRELOADED = "tests.preloaded"
# Starting a process polls all others, and only one thread may reap them.
_starting = Lock()


def run(words: tuple[str, ...], cwd: Path, environment: Mapping[str, str], text: str = "") -> tuple[int, str, str]:
    """Run a command in its own process; return its exit code, standard output and standard error."""
    with TemporaryDirectory() as directory:
        files = [Path(directory) / name for name in ("in", "out", "err")]
        files[0].write_text(text)
        process = _server().Process(target=_run_command, args=(words, cwd, dict(environment), files))
        with _starting:
            process.start()
        try:
            process.join(PATIENCE_SECONDS)
            ended = process.exitcode is not None
        finally:
            process.kill()
            process.join()
        if not ended:
            output = f"{files[1].read_text()} {files[2].read_text()}"
            pytest.fail(f"{words} has not ended after {PATIENCE_SECONDS} s: {output}")
        assert process.exitcode is not None
        return process.exitcode, files[1].read_text(), files[2].read_text()


class Program:
    """A process of `python -m`, with the methods of asyncio's Process that tests use."""

    def __init__(self, process: ForkServerProcess, stdin: int | None, stdout: "_Pipe | None") -> None:
        assert process.pid
        self.pid = process.pid
        self.stdout = stdout.reader if stdout else None
        self._stdout = stdout
        self._stdin = stdin
        self._process = process
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(process.sentinel, self._has_ended)

    @property
    def returncode(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        return self._end.result() if self._end.done() else None

    def write(self, text: bytes) -> None:
        """Write to its standard input."""
        assert self._stdin is not None
        with suppress(BrokenPipeError):
            os.write(self._stdin, text)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until it ends, and return the exit code."""
        return await asyncio.shield(self._end)

    async def end(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        self.kill()
        await self.wait()
        if self._stdout:
            self._stdout.transport.close()
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        with _starting:
            code = self._process.exitcode
            assert code is not None
            self._process.close()
        self._end.set_result(code)


async def start(module: str, *arguments: str, stdin: bool = False, stdout: bool = False) -> Program:
    """Start `python -m MODULE` with arguments, in this directory and environment; `stdin` and `stdout` make pipes."""
    child_input, our_output = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), None)
    our_input, child_output = os.pipe() if stdout else (None, os.dup(1))
    theirs = [
        Connection(child_input, writable=False),
        Connection(child_output, readable=False),
        Connection(os.dup(2), readable=False),
    ]
    try:
        pipe = await _listen(our_input) if our_input is not None else None
        parameters = (module, arguments, Path.cwd(), dict(os.environ), theirs)
        # Daemonic, so that a forgotten process ends with this one.
        process = _server().Process(target=_run_program, args=parameters, daemon=True)

        def begin() -> None:
            with _starting:
                process.start()

        # The first start waits until the server has imported everything.
        await asyncio.to_thread(begin)
    finally:
        for end in theirs:
            end.close()
    return Program(process, our_output, pipe)


@dataclass(frozen=True, slots=True)
class _Pipe:
    reader: StreamReader
    transport: asyncio.ReadTransport


async def _listen(descriptor: int) -> _Pipe:
    reader = StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: StreamReaderProtocol(reader), pipe)
    return _Pipe(reader, transport)


def _server() -> ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([_PRELOADED])
    # The server imports the tests relative to the current directory, which a test may have changed.
    with chdir(_ROOT):
        ensure_running()
    return server


def _run_command(words: tuple[str, ...], cwd: Path, environment: Mapping[str, str], files: list[Path]) -> None:
    for number, (file, mode) in enumerate(zip(files, ("rb", "wb", "wb"), strict=True)):
        with file.open(mode) as opened:
            os.dup2(opened.fileno(), number)
    _move(cwd, environment)
    _hide_tests(cwd)
    sys.argv = ["kingdom", *words]
    _run_to_exit(main)


def _run_program(
    module: str, arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], files: list[Connection]
) -> None:
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
        file.close()
    _move(cwd, environment)
    # Import it again, as `__main__`.
    sys.modules.pop(module, None)
    sys.argv = [module, *arguments]
    _run_to_exit(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _move(cwd: Path, environment: Mapping[str, str]) -> None:
    assert _PRELOADED in sys.modules, "the fork server could not import the preloaded modules"
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")


def _run_to_exit(program: Callable[[], object]) -> None:
    code: Any = 0
    try:
        program()
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
            code = 1
    # Run the interpreter's exit handlers, which a forked process skips.
    ctypes.pythonapi.Py_Exit(code)


def _hide_tests(cwd: Path) -> None:
    """Restrict imports to those of `python -m` in this directory."""
    sys.path[:] = [str(cwd), *(place for place in sys.path if place and Path(place) != _ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == __name__.partition(".")[0]]:
        del sys.modules[name]

"""Starting a program, and ending it together with everything that it started.

With bubblewrap a program runs in a pid namespace of its own: when the program ends or is killed, the kernel removes
everything in the namespace, also what has a session of its own or runs as a daemon, and when this process dies the
namespace dies with it. Without bubblewrap the program leads a process group: what left the group survives, and when
this process dies only the program itself is killed, not what it started.

The kernel ties that death to the thread which started the program: start programs from the main thread.
"""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec

from kingdom.errors import Misconfigured, ProgramFailed

_CHUNK = 1 << 16
_TAIL = 1 << 16
_SHOWN = 2000
# How long output may still come after the end of a program whose pipe somebody else holds open.
_LAST_OUTPUT_SECONDS = 1.0
_POLL_SECONDS = 0.002

_BECOME = (sys.executable, "-I", "-S", str(Path(__file__).with_name("become.py")))
_OPTIONS = ("--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent")


class _NamespaceInfo(msgspec.Struct, rename="kebab"):
    child_pid: int


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended, and the last part of what it wrote."""

    code: int
    output: str


class Program:
    """A program that was started; made by `start_program`."""

    def __init__(self, started: "_Started", *, contained: bool = False, init: int | None = None) -> None:
        self.pid = started.process.pid
        self._process = started.process
        self._pipes = started.pipes
        self._transport = started.transport
        self._errors = started.errors
        self._errors_before = started.errors_before
        self._contained = contained
        self._init = init
        self._early = b""
        self._watching = asyncio.create_task(self._watch(), name=f"program {self.pid}")

    @property
    def running(self) -> bool:
        """Return whether anything of the program runs still."""
        return not self._watching.done()

    def write(self, data: bytes) -> None:
        """Write to the standard input; what a program that has ended does not read is lost."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def close_input(self) -> None:
        """Tell the program that no more input comes."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the standard output line by line, however long the lines are, also a last one without an end."""
        parts: list[bytes] = []
        async for chunk in self.chunks():
            first, *others = chunk.split(b"\n")
            parts.append(first)
            for other in others:
                yield b"".join(parts)
                parts = [other]
        if rest := b"".join(parts):
            yield rest

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the standard output as it comes."""
        if self._early:
            yield self._early
        output = self._process.stdout
        while output is not None and (chunk := await output.read(_CHUNK)):
            yield chunk

    def last_words(self) -> str:
        """Return the end of what the program wrote to its standard error, if a file took it."""
        if self._errors is None:
            return ""
        try:
            with self._errors.open("rb") as file:
                file.seek(max(self._errors_before, file.seek(0, os.SEEK_END) - _SHOWN))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    async def wait(self) -> int:
        """Wait until nothing of the program runs any more; return its exit code, or minus the signal it died of."""
        return await asyncio.shield(self._watching)

    async def kill(self) -> int:
        """End the program and all it started at once; return as `wait` does."""
        if self.running:
            with suppress(ProcessLookupError):
                if self._init is not None:
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                elif self._process.returncode is None:
                    os.killpg(self.pid, signal.SIGKILL)
        return await self.wait()

    async def admit(self, init_pid: int) -> None:
        """Let a contained program begin, once nothing of it can outlive this process."""
        first = b"" if self._process.stdout is None else await self._process.stdout.read(1)
        if first != b"\n":
            # This is not the program but bubblewrap, complaining.
            self._early = first
            return
        # The init arranges to die with bubblewrap right after its fork, and then it sleeps until all have ended.
        while _state(init_pid) not in {b"S", b""}:  # noqa: ASYNC110 - the kernel tells of no change
            await asyncio.sleep(_POLL_SECONDS)
        self.write(b"\n")

    async def _watch(self) -> int:
        await self._pipes.exited.wait()
        if self._init is not None:
            try:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                # The init of a pid namespace ends only after everything else in it has ended.
                await _readable(self._init)
            finally:
                os.close(self._init)
                self._init = None
        if not self._contained:
            await _end_group(self.pid)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._pipes.output_ended.wait(), _LAST_OUTPUT_SECONDS)
            self._transport.close()
        return self._process.returncode or 0


class _Pipes(SubprocessStreamProtocol):
    """The pipes of a program; tells when it has exited, even if somebody else holds the pipes open."""

    def __init__(self) -> None:
        super().__init__(limit=_CHUNK, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()
        self.output_ended = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        if fd == 1:
            self.output_ended.set()


@dataclass(frozen=True, slots=True)
class _Started:
    """What a program consists of for this process; its errors begin in their file after so many bytes."""

    process: Process
    pipes: _Pipes
    transport: asyncio.SubprocessTransport
    errors: Path | None
    errors_before: int


async def start_program(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    errors: Path | None,
    contained: bool | None = None,
) -> Program:
    """Start a program with exactly this environment and PWD.

    Its standard error is appended to the file `errors`, or goes into its output. With `contained` it runs in a
    namespace of its own, which by default it does where bubblewrap is installed.
    """
    # Half a start cannot be undone: who gives up waits for the whole, which takes no longer than a moment.
    starting = asyncio.create_task(_start(argv, cwd, environment, errors, contained=contained))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.create_task(_kill_once_started(starting)))
        raise


async def _start(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str], errors: Path | None, *, contained: bool | None
) -> Program:
    locale = "LC_CTYPE" if "LC_CTYPE" in environment else ""
    bubblewrap = None if contained is False else shutil.which("bwrap")
    if contained and bubblewrap is None:
        raise Misconfigured("programs shall be contained, but bwrap is not on PATH: install bubblewrap")
    if bubblewrap is not None:
        return await _start_contained([bubblewrap, *_OPTIONS], [*_BECOME, "", locale, *argv], cwd, environment, errors)
    wrapped = [*_BECOME, str(os.getpid()), locale, *argv]
    return Program(await _spawn(wrapped, cwd, environment, errors))


async def _kill_once_started(starting: asyncio.Task[Program]) -> None:
    with suppress(ProgramFailed, Misconfigured):
        await (await starting).kill()


async def run_program(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout: timedelta,  # noqa: ASYNC109 - what runs too long must be killed, not only left alone
    contained: bool | None = None,
) -> Finished:
    """Run a program to its end and return how it ended; raises ProgramFailed if that takes too long."""
    program = await start_program(argv, cwd=cwd, environment=environment, errors=None, contained=contained)
    tail = bytearray()

    async def read() -> None:
        async for chunk in program.chunks():
            tail.extend(chunk)
            del tail[:-_TAIL]

    program.close_input()
    reading = asyncio.create_task(read())
    try:
        code = await asyncio.wait_for(program.wait(), timeout.total_seconds())
    except TimeoutError:
        await program.kill()
        await reading
        words = bytes(tail).decode(errors="replace")[-_SHOWN:]
        raise ProgramFailed(
            f"{argv[0]} took longer than {timeout.total_seconds():g} s and was killed: allow more time or find out "
            f"what it waits for; it wrote last: {words!r}"
        ) from None
    except asyncio.CancelledError:
        await program.kill()
        await reading
        raise
    await reading
    return Finished(code, bytes(tail).decode(errors="replace"))


def described(code: int) -> str:
    """Return in words how a program ended."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return f"killed by {name}" if code < 0 else f"exit code {code}, as after {name}"


async def _start_contained(
    bubblewrap: Sequence[str], argv: Sequence[str], cwd: Path, environment: Mapping[str, str], errors: Path | None
) -> Program:
    reading, writing = os.pipe()
    try:
        command = [*bubblewrap, "--info-fd", str(writing), "--chdir", str(cwd), "--", *argv]
        try:
            started = await _spawn(command, cwd, environment, errors, writing)
        finally:
            os.close(writing)
        init = _pidfd(pid) if (pid := await _init_pid(reading)) else None
    finally:
        os.close(reading)
    program = Program(started, contained=True, init=init)
    await program.admit(pid)
    return program


async def _spawn(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str], errors: Path | None, *kept: int
) -> _Started:
    loop = asyncio.get_running_loop()
    try:
        with _appending(errors) as (stderr, before):
            transport, pipes = await loop.subprocess_exec(
                _Pipes,
                *argv,
                cwd=cwd,
                env={**environment, "PWD": str(cwd)},
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                start_new_session=True,
                pass_fds=kept,
            )
    except (OSError, ValueError) as error:
        raise ProgramFailed(f"{argv[0]} could not be started in {cwd}: {error}") from error
    return _Started(Process(transport, pipes, loop), pipes, transport, errors, before)


@contextmanager
def _appending(errors: Path | None) -> Iterator[tuple[int, int]]:
    """Open the file that takes the standard error; tell also how long it is already."""
    if errors is None:
        yield STDOUT, 0
        return
    with errors.open("ab") as file:
        yield file.fileno(), file.tell()


async def _init_pid(info: int) -> int:
    """Return the pid of the namespace's init, or 0 where bubblewrap has failed."""
    told = b""
    while not told.rstrip().endswith(b"}"):
        await _readable(info)
        if not (more := os.read(info, _CHUNK)):
            return 0
        told += more
    return msgspec.json.decode(told, type=_NamespaceInfo).child_pid


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable at the end of a process, or None if it has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _end_group(group: int) -> None:
    while has_members(group):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        await asyncio.sleep(_POLL_SECONDS)


def has_members(group: int) -> bool:
    """Return whether a process group has members that are more than zombies."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return any(_field(pid, 2) == b"%d" % group and _state(pid) not in {b"Z", b"X", b""} for pid in pids)


def _state(pid: int) -> bytes:
    return _field(pid, 0)


def _field(pid: int, number: int) -> bytes:
    """Return a field that the kernel keeps on a process, counted from its state, or nothing if it has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[number]
    except OSError:
        return b""

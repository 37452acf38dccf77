"""Starting a program, and ending it together with everything that it started.

With bubblewrap a program runs in a pid namespace of its own: when the program ends or is killed, the kernel removes
everything in the namespace, also what has a session of its own or runs as a daemon, and when this process dies the
namespace dies with it. Without bubblewrap the program leads a process group: what left the group survives, and when
this process dies only the program itself is killed, not what it started. A sandbox tells what of the machine there is
in the namespace; without one it is everything.

The kernel ties that death to the thread which started the program: start programs from the main thread.
"""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.soldiers.disk_quota import DiskQuota, DiskQuotaExceeded
from kingdom.soldiers.pid_namespace import init_pid, pidfd, readable
from kingdom.soldiers.process_table import children, described, end_group, state
from kingdom.soldiers.redaction import WELL_KNOWN, Redaction, write_redacted
from kingdom.soldiers.sandbox import bridge
from kingdom.soldiers.sandbox.bubblewrap import bubblewrap_options
from kingdom.soldiers.sandbox.resource_limits import ControlGroups, apply_rlimits, create_control_groups
from kingdom.soldiers.sandbox.sandbox import ResourceLimits, Sandbox, SandboxProfile

_CHUNK = 1 << 16
_TAIL = 1 << 16
_SHOWN = 2000
_LINE_MAX = 256 << 20
# How long output may still come after the end of a program whose pipe somebody else holds open.
_LAST_OUTPUT_SECONDS = 10.0
_POLL_SECONDS = 0.002

_BECOME = (sys.executable, "-I", "-S", str(Path(__file__).with_name("become.py")))
# Says that it is there, waits until it is told to begin, and becomes the program.
_AWAIT = ("/bin/sh", "-c", 'echo; read -r word && exec "$@"', "sh")
_BRIDGE = (sys.executable, "-I", "-S", bridge.__file__)
_OPEN = Sandbox(profile=SandboxProfile.OFF)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended, and the last part of what it wrote."""

    code: int
    output: str


class Program:
    """A program that was started; made by `start_program`."""

    def __init__(
        self,
        started: "_Started",
        *,
        contained: bool = False,
        init: int | None = None,
        confinement: ControlGroups | None = None,
    ) -> None:
        self.pid = started.process.pid
        self._process = started.process
        self._pipes = started.pipes
        self._transport = started.transport
        self._errors = started.errors
        self._errors_before = started.errors_before
        self._contained = contained
        self._init = init
        self._confinement = confinement
        self._early = b""
        self.ended_for = ""
        self._disk: asyncio.Task[None] | None = None
        self._keeping = started.keep_errors()
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
        """Yield the standard output line by line, also a last one without an end.

        A line that is longer than any that makes sense ends the program: it would take all memory of this process.
        """
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            first, *others = chunk.split(b"\n")
            parts.append(first)
            size += len(first)
            for other in others:
                yield b"".join(parts)
                parts, size = [other], len(other)
            if size > _LINE_MAX:
                await self.kill()
                return
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

    def described(self, code: int) -> str:
        """Return in words how this program ended, or why it was ended."""
        return self.ended_for or described(code)

    def keep_to(self, disk: DiskQuota) -> None:
        """End the program when its run takes more of the disk than it may."""
        self._disk = asyncio.create_task(self._end_beyond(disk), name=f"disk of {self.pid}")

    async def admit(self, init_pid: int, limits: ResourceLimits) -> None:
        """Let a contained program begin, once nothing of it can outlive this process and it is held to its limits."""
        first = b"" if self._process.stdout is None else await self._process.stdout.read(1)
        if first != b"\n":
            # This is not the program but bubblewrap, complaining.
            self._early = first
            return
        # The init arranges to die with bubblewrap right after its fork, and then it sleeps until all have ended.
        while state(init_pid) not in {b"S", b""}:  # noqa: ASYNC110 - the kernel tells of no change
            await asyncio.sleep(_POLL_SECONDS)
        for pid in children(init_pid):
            apply_rlimits(pid, limits)
            if self._confinement is not None:
                self._confinement.add(pid)
        self.write(b"\n")

    async def _end_beyond(self, disk: DiskQuota) -> None:
        self.ended_for = await disk.exceeded()
        await self.kill()

    async def _watch(self) -> int:
        await self._pipes.exited.wait()
        if self._disk is not None and not self.ended_for:
            self._disk.cancel()
        if self._init is not None:
            try:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                # The init of a pid namespace ends only after everything else in it has ended.
                await readable(self._init)
            finally:
                os.close(self._init)
                self._init = None
        if self._confinement is not None:
            await self._confinement.remove()
        if not self._contained:
            await end_group(self.pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_OUTPUT_SECONDS):
                    await self._pipes.output_ended.wait()
        if self._keeping is not None:
            # Somebody else may hold the pipe open.
            await asyncio.wait({self._keeping}, timeout=_LAST_OUTPUT_SECONDS)
            self._keeping.cancel()
        if not self._contained:
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
class _Call:
    """A program as it shall be started."""

    argv: list[str]
    cwd: Path
    environment: Mapping[str, str]
    errors: Path | None
    redaction: Redaction


@dataclass(frozen=True, slots=True)
class _Started:
    """What a program consists of for this process; its errors begin in their file after so many bytes."""

    process: Process
    pipes: _Pipes
    transport: asyncio.SubprocessTransport
    errors: Path | None
    errors_before: int
    redaction: Redaction

    def keep_errors(self) -> asyncio.Task[None] | None:
        """Begin to write down what the program complains about, if a file is to take it."""
        stderr = self.process.stderr
        if self.errors is None or stderr is None:
            return None
        writing = write_redacted(stderr, self.errors, self.redaction)
        return asyncio.create_task(writing, name=f"errors {self.process.pid}")


async def start_program(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    errors: Path | None,
    contained: bool | None = None,
    sandbox: Sandbox | None = None,
    redaction: Redaction = WELL_KNOWN,
) -> Program:
    """Start a program with exactly this environment and PWD.

    Its standard error is appended to the file `errors` without secrets, or goes into its output. With `contained` it
    runs in a namespace of its own, which by default it does where bubblewrap is installed; with a `sandbox` that is
    not off it always does, and sees nothing but what the sandbox has.
    """
    # Half a start cannot be undone: who gives up waits for the whole, which takes no longer than a moment.
    call = _Call([*argv], cwd, environment, errors, redaction)
    starting = asyncio.create_task(_start(call, contained=contained, sandbox=sandbox))
    try:
        program = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.create_task(_kill_once_started(starting)))
        raise
    if sandbox is not None and sandbox.disk is not None:
        program.keep_to(sandbox.disk)
    return program


async def _start(call: _Call, *, contained: bool | None, sandbox: Sandbox | None) -> Program:
    sandbox = sandbox or _OPEN
    closed = sandbox.profile is not SandboxProfile.OFF
    bubblewrap = None if contained is False and not closed else shutil.which("bwrap")
    if (contained or closed) and bubblewrap is None:
        raise Misconfigured("programs shall be contained, but bwrap is not on PATH: install bubblewrap")
    port_forwards = [f"{way.port}={way.inside}" for way in sandbox.port_forwards]
    bridging = [*_BRIDGE, ",".join(port_forwards)] if port_forwards else []
    if bubblewrap is None:
        locale = "LC_CTYPE" if "LC_CTYPE" in call.environment else ""
        return Program(await _spawn(replace(call, argv=[*_BECOME, str(os.getpid()), locale, *call.argv])))
    call = replace(call, argv=[*_AWAIT, *bridging, *call.argv])
    with bubblewrap_options(sandbox, call.environment) as (options, kept):
        return await _start_contained([bubblewrap, *options], call, kept, sandbox.limits)


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
    sandbox: Sandbox | None = None,
) -> Finished:
    """Run a program to its end and return how it ended; raises ProgramFailed if it takes too much time or disk."""
    program = await start_program(
        argv, cwd=cwd, environment=environment, errors=None, contained=contained, sandbox=sandbox
    )
    tail = bytearray()

    async def read() -> None:
        async for chunk in program.chunks():
            tail.extend(chunk)
            del tail[:-_TAIL]

    program.close_input()
    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            code = await program.wait()
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
    if program.ended_for:
        raise DiskQuotaExceeded(f"{argv[0]} was ended: {program.ended_for}")
    return Finished(code, bytes(tail).decode(errors="replace"))


async def _start_contained(
    bubblewrap: Sequence[str], call: _Call, kept: Sequence[int], limits: ResourceLimits
) -> Program:
    confinement, others = create_control_groups(limits)
    reading, writing = os.pipe()
    try:
        command = [*bubblewrap, "--info-fd", str(writing), "--chdir", str(call.cwd), "--", *call.argv]
        try:
            started = await _spawn(replace(call, argv=command), writing, *kept)
        except ProgramFailed:
            await confinement.remove()
            raise
        finally:
            os.close(writing)
        init = pidfd(pid) if (pid := await init_pid(reading)) else None
    finally:
        os.close(reading)
    program = Program(started, contained=True, init=init, confinement=confinement)
    try:
        await program.admit(pid, others)
    except ProgramFailed:
        await program.kill()
        raise
    return program


async def _spawn(call: _Call, *kept: int) -> _Started:
    loop = asyncio.get_running_loop()
    try:
        before = _size(call.errors) if call.errors else 0
        transport, pipes = await loop.subprocess_exec(
            _Pipes,
            *call.argv,
            cwd=call.cwd,
            env={**call.environment, "PWD": str(call.cwd)},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE if call.errors else STDOUT,
            start_new_session=True,
            pass_fds=kept,
        )
    except (OSError, ValueError) as error:
        raise ProgramFailed(f"{call.argv[0]} could not be started in {call.cwd}: {error}") from error
    return _Started(Process(transport, pipes, loop), pipes, transport, call.errors, before, call.redaction)


def _size(errors: Path) -> int:
    """Return how long the file of errors is already; one that cannot be written to is found out now."""
    with errors.open("ab") as file:
        return file.tell()

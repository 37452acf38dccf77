"""Start a program, and end it together with everything that it started.

With bubblewrap a program runs in its own pid namespace, and the kernel kills everything in it when the program ends or
this process dies, daemons too. Without bubblewrap the program leads a process group: processes that leave the group
survive, and when this process dies only the program itself is killed. A sandbox limits what the namespace shows.

The kernel ties that death to the thread that started the program, so start programs from the main thread.
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
from kingdom.soldiers.files.disk_quota import DiskQuota, DiskQuotaExceeded
from kingdom.soldiers.processes.pid_namespace import open_pidfd, read_init_pid, wait_readable
from kingdom.soldiers.processes.process_table import child_pids, describe_exit, kill_group, process_state
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction, write_redacted
from kingdom.soldiers.sandbox import bridge
from kingdom.soldiers.sandbox.bubblewrap import bubblewrap_options
from kingdom.soldiers.sandbox.resource_limits import ControlGroups, apply_rlimits, create_control_groups
from kingdom.soldiers.sandbox.sandbox import ResourceLimits, Sandbox, SandboxProfile

_CHUNK = 1 << 16
_TAIL = 1 << 16
_SHOWN = 2000
_LINE_MAX = 256 << 20
# How long to wait for remaining output after the program's end while another process holds its pipe open.
_LAST_OUTPUT_SECONDS = 10.0
_POLL_SECONDS = 0.002

_DIE_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("die_with_parent.py")))
# Reports that it is running, waits for the go-ahead, and then becomes the program.
_AWAIT = ("/bin/sh", "-c", 'echo; read -r word && exec "$@"', "sh")
_BRIDGE = (sys.executable, "-I", "-S", bridge.__file__)
_OPEN = Sandbox(profile=SandboxProfile.OFF)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The exit code of a program, and the last part of its output."""

    code: int
    output: str


class Program:
    """A running program, created by `start_program`."""

    def __init__(
        self,
        spawned: "_SpawnedProcess",
        *,
        contained: bool = False,
        init: int | None = None,
        confinement: ControlGroups | None = None,
    ) -> None:
        self.pid = spawned.process.pid
        self._process = spawned.process
        self._pipes = spawned.pipes
        self._transport = spawned.transport
        self._errors = spawned.errors
        self._errors_before = spawned.errors_before
        self._contained = contained
        self._init = init
        self._confinement = confinement
        self._early = b""
        self.end_reason = ""
        self._disk: asyncio.Task[None] | None = None
        self._stderr_task = spawned.start_keeping_errors()
        self._watching = asyncio.create_task(self._watch(), name=f"program {self.pid}")

    @property
    def running(self) -> bool:
        """Return whether any process of the program is still running."""
        return not self._watching.done()

    def write(self, data: bytes) -> None:
        """Write to the standard input; data that the program does not read before its end is lost."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def close_input(self) -> None:
        """Close the standard input."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the standard output line by line, including an incomplete last line.

        A line that is too long ends the program, because it would use up the memory of this process.
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
        """Yield the standard output as it arrives."""
        if self._early:
            yield self._early
        output = self._process.stdout
        while output is not None and (chunk := await output.read(_CHUNK)):
            yield chunk

    def stderr_tail(self) -> str:
        """Return the end of the program's standard error, if it is kept in a file."""
        if self._errors is None:
            return ""
        try:
            with self._errors.open("rb") as file:
                file.seek(max(self._errors_before, file.seek(0, os.SEEK_END) - _SHOWN))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    async def wait(self) -> int:
        """Wait until no process of the program is left; return its exit code, or minus the signal that killed it."""
        return await asyncio.shield(self._watching)

    async def kill(self) -> int:
        """Kill the program and everything it started; return the same as `wait`."""
        if self.running:
            with suppress(ProcessLookupError):
                if self._init is not None:
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                elif self._process.returncode is None:
                    os.killpg(self.pid, signal.SIGKILL)
        return await self.wait()

    def describe_exit(self, code: int) -> str:
        """Describe how this program ended, or why it was killed."""
        return self.end_reason or describe_exit(code)

    def enforce_quota(self, disk: DiskQuota) -> None:
        """Kill the program when its run exceeds its disk quota."""
        self._disk = asyncio.create_task(self._kill_over_quota(disk), name=f"disk of {self.pid}")

    async def let_begin(self, init_pid: int, limits: ResourceLimits) -> None:
        """Let a contained program begin once it cannot outlive this process and its limits are set."""
        first = b"" if self._process.stdout is None else await self._process.stdout.read(1)
        if first != b"\n":
            # The output is an error message of bubblewrap, not the go-ahead line.
            self._early = first
            return
        # The init ties its life to bubblewrap right after its fork; when it sleeps, that is done.
        while process_state(init_pid) not in {b"S", b""}:  # noqa: ASYNC110 - the kernel has no event for this change
            await asyncio.sleep(_POLL_SECONDS)
        for pid in child_pids(init_pid):
            apply_rlimits(pid, limits)
            if self._confinement is not None:
                self._confinement.add(pid)
        self.write(b"\n")

    async def _kill_over_quota(self, disk: DiskQuota) -> None:
        self.end_reason = await disk.wait_until_exceeded()
        await self.kill()

    async def _watch(self) -> int:
        await self._pipes.exited.wait()
        if self._disk is not None and not self.end_reason:
            self._disk.cancel()
        if self._init is not None:
            try:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                # The init of a pid namespace ends only after everything else in it has ended.
                await wait_readable(self._init)
            finally:
                os.close(self._init)
                self._init = None
        if self._confinement is not None:
            await self._confinement.remove()
        if not self._contained:
            await kill_group(self.pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_OUTPUT_SECONDS):
                    await self._pipes.output_ended.wait()
        if self._stderr_task is not None:
            # Another process may hold the pipe open.
            await asyncio.wait({self._stderr_task}, timeout=_LAST_OUTPUT_SECONDS)
            self._stderr_task.cancel()
        if not self._contained:
            self._transport.close()
        return self._process.returncode or 0


class _Pipes(SubprocessStreamProtocol):
    """The pipes of a program; `exited` is set at its exit even if another process holds the pipes open."""

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
class _ProgramCall:
    """The arguments with which a program is started."""

    argv: list[str]
    cwd: Path
    environment: Mapping[str, str]
    errors: Path | None
    redaction: Redaction


@dataclass(frozen=True, slots=True)
class _SpawnedProcess:
    """A spawned process; its errors begin in their file at `errors_before`."""

    process: Process
    pipes: _Pipes
    transport: asyncio.SubprocessTransport
    errors: Path | None
    errors_before: int
    redaction: Redaction

    def start_keeping_errors(self) -> asyncio.Task[None] | None:
        """Start writing the standard error to its file, if there is one."""
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
    redaction: Redaction = DEFAULT_REDACTION,
) -> Program:
    """Start a program with exactly this environment and PWD.

    Its standard error is appended to the file `errors` without secrets, or becomes part of its output. With `contained`
    it runs in its own namespace, which is the default if bubblewrap is installed. With a `sandbox` that is not off it
    always does, and sees only what the sandbox contains.
    """
    # Half a start cannot be undone, so a cancelled caller waits for the whole start, which is short.
    call = _ProgramCall([*argv], cwd, environment, errors, redaction)
    starting = asyncio.create_task(_start(call, contained=contained, sandbox=sandbox))
    try:
        program = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.create_task(_kill_after_start(starting)))
        raise
    if sandbox is not None and sandbox.disk is not None:
        program.enforce_quota(sandbox.disk)
    return program


async def _start(call: _ProgramCall, *, contained: bool | None, sandbox: Sandbox | None) -> Program:
    sandbox = sandbox or _OPEN
    closed = sandbox.profile is not SandboxProfile.OFF
    bubblewrap = None if contained is False and not closed else shutil.which("bwrap")
    if (contained or closed) and bubblewrap is None:
        raise Misconfigured(
            "bubblewrap is needed to run programs in a namespace, but bwrap is not on PATH: install bubblewrap"
        )
    port_forwards = [f"{way.port}={way.inside}" for way in sandbox.port_forwards]
    bridging = [*_BRIDGE, ",".join(port_forwards)] if port_forwards else []
    if bubblewrap is None:
        locale = "LC_CTYPE" if "LC_CTYPE" in call.environment else ""
        return Program(await _spawn(replace(call, argv=[*_DIE_WITH_PARENT, str(os.getpid()), locale, *call.argv])))
    call = replace(call, argv=[*_AWAIT, *bridging, *call.argv])
    with bubblewrap_options(sandbox, call.environment) as (options, kept):
        return await _start_contained([bubblewrap, *options], call, kept, sandbox.limits)


async def _kill_after_start(starting: asyncio.Task[Program]) -> None:
    with suppress(ProgramFailed, Misconfigured):
        await (await starting).kill()


async def run_program(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout: timedelta,  # noqa: ASYNC109 - a program that runs too long must be killed, not only abandoned
    contained: bool | None = None,
    sandbox: Sandbox | None = None,
) -> ProgramResult:
    """Run a program to its end; raises ProgramFailed if it takes too much time or disk."""
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
    if program.end_reason:
        raise DiskQuotaExceeded(f"{argv[0]} was killed: {program.end_reason}")
    return ProgramResult(code, bytes(tail).decode(errors="replace"))


async def _start_contained(
    bubblewrap: Sequence[str], call: _ProgramCall, kept: Sequence[int], limits: ResourceLimits
) -> Program:
    confinement, others = create_control_groups(limits)
    reading, writing = os.pipe()
    try:
        command = [*bubblewrap, "--info-fd", str(writing), "--chdir", str(call.cwd), "--", *call.argv]
        try:
            spawned = await _spawn(replace(call, argv=command), writing, *kept)
        except ProgramFailed:
            await confinement.remove()
            raise
        finally:
            os.close(writing)
        init = open_pidfd(pid) if (pid := await read_init_pid(reading)) else None
    finally:
        os.close(reading)
    program = Program(spawned, contained=True, init=init, confinement=confinement)
    try:
        await program.let_begin(pid, others)
    except ProgramFailed:
        await program.kill()
        raise
    return program


async def _spawn(call: _ProgramCall, *kept: int) -> _SpawnedProcess:
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
    return _SpawnedProcess(Process(transport, pipes, loop), pipes, transport, call.errors, before, call.redaction)


def _size(errors: Path) -> int:
    """Return the current size of the errors file; fails early if it cannot be written."""
    with errors.open("ab") as file:
        return file.tell()

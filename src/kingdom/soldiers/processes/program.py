"""Start a program, and end it together with everything that it started.

With bubblewrap a program runs in its own pid namespace. When the program ends or this process dies, the kernel kills
everything in the namespace, daemons too. Without bubblewrap the program leads a process group: processes that leave the
group survive, and when this process dies only the program itself is killed. A sandbox limits what the namespace shows.

Start programs from the main thread: the kernel kills a program when the thread that started it ends.
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

from kingdom.errors import Misconfigured, ProgramFailed, ProgramTimedOut
from kingdom.soldiers.files.disk_quota import DiskQuota, DiskQuotaExceeded
from kingdom.soldiers.processes.pid_namespace import open_pidfd, read_init_pid, wait_readable
from kingdom.soldiers.processes.process_table import child_pids, describe_exit, kill_group, process_state
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction, write_redacted
from kingdom.soldiers.sandbox import bridge
from kingdom.soldiers.sandbox.bubblewrap import bubblewrap_options
from kingdom.soldiers.sandbox.resource_limits import ControlGroups, apply_rlimits, create_control_groups
from kingdom.soldiers.sandbox.sandbox import ResourceLimits, Sandbox, SandboxProfile

_CHUNK_BYTES = 1 << 16
_OUTPUT_BYTES_KEPT = 1 << 16
_ERROR_LENGTH_MAX = 2000
_LINE_BYTES_MAX = 256 << 20
# How long to wait for remaining output after the program's end if another process holds its pipe open.
_LAST_OUTPUT_SECONDS = 10.0
_POLL_SECONDS = 0.002

_DIE_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("die_with_parent.py")))
# This shell prints an empty line to report that it is running, waits for a line, and then becomes the program.
_WAIT_FOR_LINE = ("/bin/sh", "-c", 'echo; read -r word && exec "$@"', "sh")
_BRIDGE = (sys.executable, "-I", "-S", bridge.__file__)
_NO_SANDBOX = Sandbox(profile=SandboxProfile.OFF)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The exit code of a program, and the last part of its output."""

    code: int
    output: str


class Program:
    """A running program, created by `start_program`.

    `contained` means that it has its own pid namespace; `init` is a pidfd of the first process in this namespace.
    """

    def __init__(
        self,
        spawned: "_SpawnedProcess",
        *,
        contained: bool = False,
        init: int | None = None,
        control_groups: ControlGroups | None = None,
    ) -> None:
        self.pid = spawned.process.pid
        self._process = spawned.process
        self._pipes = spawned.pipes
        self._transport = spawned.transport
        self._errors = spawned.errors
        self._errors_size_before = spawned.errors_size_before
        self._contained = contained
        self._init = init
        self._control_groups = control_groups
        self._first_output = b""
        self.end_reason = ""
        self._quota_task: asyncio.Task[None] | None = None
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
        """Yield the standard output line by line. Kill the program if it writes a line that is too long to be kept."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            first, *others = chunk.split(b"\n")
            parts.append(first)
            size += len(first)
            for other in others:
                yield b"".join(parts)
                parts, size = [other], len(other)
            if size > _LINE_BYTES_MAX:
                await self.kill()
                return
        if rest := b"".join(parts):
            yield rest

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the standard output as it arrives."""
        if self._first_output:
            yield self._first_output
        output = self._process.stdout
        while output is not None and (chunk := await output.read(_CHUNK_BYTES)):
            yield chunk

    def stderr_tail(self) -> str:
        """Return the end of the program's standard error, if it is kept in a file."""
        if self._errors is None:
            return ""
        try:
            with self._errors.open("rb") as file:
                file.seek(max(self._errors_size_before, file.seek(0, os.SEEK_END) - _ERROR_LENGTH_MAX))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    async def wait(self) -> int:
        """Wait until no process of the program is left; return its exit code, which is negative after a signal."""
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
        self._quota_task = asyncio.create_task(self._kill_over_quota(disk), name=f"disk of {self.pid}")

    async def let_begin(self, init_pid: int, limits: ResourceLimits) -> None:
        """Let a contained program begin once it cannot outlive this process and its limits are set."""
        first = b"" if self._process.stdout is None else await self._process.stdout.read(1)
        if first != b"\n":
            # The output is an error message of bubblewrap, not the line of `_WAIT_FOR_LINE`.
            self._first_output = first
            return
        # Wait until the init sleeps. Before it sleeps, it asks the kernel to kill it when bubblewrap dies.
        while process_state(init_pid) not in {b"S", b""}:  # noqa: ASYNC110 - the kernel has no event for this change
            await asyncio.sleep(_POLL_SECONDS)
        for pid in child_pids(init_pid):
            apply_rlimits(pid, limits)
            if self._control_groups is not None:
                self._control_groups.add(pid)
        self.write(b"\n")

    async def _kill_over_quota(self, disk: DiskQuota) -> None:
        self.end_reason = await disk.wait_until_exceeded()
        await self.kill()

    async def _watch(self) -> int:
        await self._pipes.exited.wait()
        if self._quota_task is not None and not self.end_reason:
            self._quota_task.cancel()
        if self._init is not None:
            try:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                # The init of a pid namespace ends only after everything else in it has ended.
                await wait_readable(self._init)
            finally:
                os.close(self._init)
                self._init = None
        if self._control_groups is not None:
            await self._control_groups.remove()
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
        super().__init__(limit=_CHUNK_BYTES, loop=asyncio.get_running_loop())
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
    """A spawned process; `errors_size_before` is the size of its errors file before its start."""

    process: Process
    pipes: _Pipes
    transport: asyncio.SubprocessTransport
    errors: Path | None
    errors_size_before: int
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
    """Start a program with exactly this environment, plus PWD.

    Its standard error is appended to the file `errors` without secrets, or becomes part of its output. With `contained`
    the program runs in its own namespace; this is the default if bubblewrap is installed. With a `sandbox` that is not
    off, the program always runs in a namespace, and sees only the contents of the sandbox.
    """
    # A start cannot be undone halfway, so a cancelled caller waits until the start is done. It does not take long.
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
    sandbox = sandbox or _NO_SANDBOX
    sandboxed = sandbox.profile is not SandboxProfile.OFF
    bubblewrap = None if contained is False and not sandboxed else shutil.which("bwrap")
    if (contained or sandboxed) and bubblewrap is None:
        raise Misconfigured(
            "bubblewrap is needed to run programs in a namespace, but bwrap is not on PATH: install bubblewrap"
        )
    port_forwards = [f"{forward.port}={forward.inside}" for forward in sandbox.port_forwards]
    bridge_command = [*_BRIDGE, ",".join(port_forwards)] if port_forwards else []
    if bubblewrap is None:
        # If the environment has no LC_CTYPE, the starter removes the one that its Python sets.
        kept = "LC_CTYPE" if "LC_CTYPE" in call.environment else ""
        return Program(await _spawn(replace(call, argv=[*_DIE_WITH_PARENT, str(os.getpid()), kept, *call.argv])))
    call = replace(call, argv=[*_WAIT_FOR_LINE, *bridge_command, *call.argv])
    with bubblewrap_options(sandbox, call.environment) as (options, descriptors):
        return await _start_contained([bubblewrap, *options], call, descriptors, sandbox.limits)


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
    redaction: Redaction = DEFAULT_REDACTION,
) -> ProgramResult:
    """Run a program to its end; raises ProgramFailed, without the secrets of `redaction`, if time or disk run out."""
    program = await start_program(
        argv, cwd=cwd, environment=environment, errors=None, contained=contained, sandbox=sandbox
    )
    tail = bytearray()

    async def read() -> None:
        async for chunk in program.chunks():
            tail.extend(chunk)
            del tail[:-_OUTPUT_BYTES_KEPT]

    program.close_input()
    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            code = await program.wait()
    except (TimeoutError, asyncio.CancelledError) as end:
        await program.kill()
        await reading
        if isinstance(end, asyncio.CancelledError):
            raise
        words = redaction.ending(bytes(tail).decode(errors="replace"), _ERROR_LENGTH_MAX)
        raise ProgramTimedOut(
            f"{argv[0]} took longer than {timeout.total_seconds():g} s and was killed: allow more time or find out "
            f"what it waits for; it wrote last: {words!r}"
        ) from None
    await reading
    if program.end_reason:
        raise DiskQuotaExceeded(f"{argv[0]} was killed: {program.end_reason}")
    return ProgramResult(code, bytes(tail).decode(errors="replace"))


async def _start_contained(
    bubblewrap: Sequence[str], call: _ProgramCall, descriptors: Sequence[int], limits: ResourceLimits
) -> Program:
    control_groups, remaining_limits = create_control_groups(limits)
    reading, writing = os.pipe()
    try:
        command = [*bubblewrap, "--info-fd", str(writing), "--chdir", str(call.cwd), "--", *call.argv]
        try:
            spawned = await _spawn(replace(call, argv=command), writing, *descriptors)
        except ProgramFailed:
            await control_groups.remove()
            raise
        finally:
            os.close(writing)
        init = open_pidfd(pid) if (pid := await read_init_pid(reading)) else None
    finally:
        os.close(reading)
    program = Program(spawned, contained=True, init=init, control_groups=control_groups)
    try:
        await program.let_begin(pid, remaining_limits)
    except ProgramFailed:
        await program.kill()
        raise
    return program


async def _spawn(call: _ProgramCall, *descriptors: int) -> _SpawnedProcess:
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
            pass_fds=descriptors,
        )
    except (OSError, ValueError) as error:
        raise ProgramFailed(f"{call.argv[0]} could not be started in {call.cwd}: {error}") from error
    return _SpawnedProcess(Process(transport, pipes, loop), pipes, transport, call.errors, before, call.redaction)


def _size(errors: Path) -> int:
    """Return the current size of the errors file. Raise OSError if the file cannot be written."""
    with errors.open("ab") as file:
        return file.tell()

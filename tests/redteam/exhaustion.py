"""Exhaust resources of the host: connections and memory of the receiver, disk, inodes, the egress log."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import aiohttp

from kingdom.court.sentinel import receiver as receiving
from kingdom.court.sentinel.receiver import WebhookReceiver
from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts import worktree_include
from kingdom.soldiers.checkouts.worktree_include import read_patterns
from kingdom.soldiers.files import disk_quota
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.files.disk_quota import DiskQuota, DiskQuotaExceeded
from kingdom.soldiers.processes.program import run_program
from kingdom.soldiers.sandbox import egress
from kingdom.soldiers.sandbox.egress_ledger import EgressLimits
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from tests.contract.backends import FilesBackend
from tests.integration.court.sentinel.scene import Watch, opened
from tests.integration.court.sentinel.test_receiver import Strangers, unsigned
from tests.integration.soldiers.test_egress import INNER, INTERNET, NAMED, OTHER, PATIENT, ProxiedClient, limited
from tests.integration.soldiers.web import make_certificate, serving
from tests.patience import PATIENCE_SECONDS
from tests.redteam.defended import AttemptClass, Ground

EXHAUSTION = AttemptClass("exhaustion")
_QUOTA = "soldiers.disk_mb, added up by the host"
_MIB = 8
_ENORMOUS = 1 << 60
# Programs that fill the disk.
_FILL = "open(name, 'wb').write(bytes(1 << 20))"
_FILLS = {
    "one large file": "open('large', 'wb').write(bytes(20 << 20))",
    "many files": f"for name in map(str, range(20)): {_FILL}",
    "a folder that cannot be read": "os.mkdir('d'); open('d/x', 'wb').write(bytes(20 << 20)); os.chmod('d', 0)",
    "a file in a hidden folder": "os.mkdir('.cache'); open('.cache/x', 'wb').write(bytes(20 << 20))",
    "many inodes": "for name in range(300): open(str(name), 'w').close()",
    "nested folders": "for _ in range(200): os.mkdir('d'); os.chdir('d')",
}


@EXHAUSTION.stopped_by(_QUOTA, _FILLS)
async def fill_the_disk_with(ground: Ground, program: str) -> str:
    """Run a program that fills a folder and waits: the quota ends it."""
    ground.patch.setattr(disk_quota, "_PAUSE_SECONDS", 0.02)
    ground.patch.setattr(disk_quota, "FILES_MAX", 200)
    space = ground.folder / "space"
    space.mkdir()
    (space / "fill.py").write_text(f"import os, time\n{program}\ntime.sleep({600 if ground.is_defended else 0.2})\n")
    quota = DiskQuota(lambda: [space], _MIB) if ground.is_defended else None
    try:
        finished = await run_program(
            [sys.executable, "-I", "-S", "fill.py"],
            cwd=space,
            environment={"PATH": "/usr/bin:/bin"},
            timeout=timedelta(seconds=PATIENCE_SECONDS),
            sandbox=Sandbox(profile=SandboxProfile.STRICT, writable=(space,), disk=quota),
        )
    except DiskQuotaExceeded:
        return ""
    assert not finished.code, finished.output
    return "it was not stopped"


@EXHAUSTION.stopped_by("limits on connections: the oldest idle one is closed")
async def hold_the_connections_of_the_receiver(ground: Ground) -> str:
    ground.remove(receiving, "_CONNECTIONS_MAX", _ENORMOUS)
    async with _receiving(ground) as (watch, receiver, strangers):
        held = [await strangers.connect(receiver) for _ in range(150)]
        async with watch.session.get(receiver.url + "/healthz") as answer:
            assert answer.status == 200
        return _held(held, beyond=100)


@EXHAUSTION.stopped_by("limits on bytes before a signature is checked", {"few large ones": 10, "many": 60})
async def hold_bodies_in_the_memory_of_the_receiver(ground: Ground, number: int) -> str:
    ground.remove(receiving, "_BODIES_MAX", _ENORMOUS)
    size = 200_000
    async with _receiving(ground, body_bytes_max=size) as (_, receiver, strangers):
        await asyncio.gather(*(strangers.connect(receiver, unsigned(size)) for _ in range(number)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            # Until the receiver has read or refused the bytes.
            while _bytes_of(receiver) < (size if ground.is_defended else number * (size - 1)):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        held = _bytes_of(receiver)
    return f"{held} bytes" if held > 2 * size else ""


@EXHAUSTION.stopped_by("the size of a body is limited", {"with its length": True, "without its length": False})
async def send_a_body_that_is_too_large(ground: Ground, reported: bool) -> str:  # noqa: FBT001 - a case
    most = 1000 if ground.is_defended else 1 << 20

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    headers = {"X-Hub-Signature-256": f"sha256={'0' * 64}", "Content-Type": "application/json"}
    async with _receiving(ground, body_bytes_max=most) as (watch, receiver, _):
        data: object = b" " * 2000 if reported else pieces()
        async with watch.session.post(receiver.url + receiving.PATH, data=data, headers=headers) as answer:
            # 401 means that the whole body was read and its signature checked.
            return "it was read" if answer.status == 401 else ""


@EXHAUSTION.stopped_by("a body must arrive in time")
async def send_a_body_that_never_ends(ground: Ground) -> str:
    seconds = 0.1 if ground.is_defended else PATIENCE_SECONDS
    async with _receiving(ground, body_seconds=seconds) as (_, receiver, strangers):
        reader = await strangers.connect(receiver, unsigned(1000))
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS if ground.is_defended else 0.5):
                return "" if b" 408 " in await reader.readline() else "it was read"
    return "the receiver still waits"


@EXHAUSTION.stopped_by("egress: the bytes per run are limited", {"sent": "sent_bytes", "received": "received_bytes"})
async def exceed_the_byte_limits_of_egress(ground: Ground, limit: str) -> str:
    limits = replace(PATIENT, **{limit: 100_000}) if ground.is_defended else PATIENT
    async with _proxied_client(ground, limits) as client:
        return "it was not stopped" if await limited(client) == [""] else ""


@EXHAUSTION.stopped_by("egress: open connections are limited")
async def hold_the_connections_of_the_proxy(ground: Ground) -> str:
    limits = replace(PATIENT, connections=2) if ground.is_defended else PATIENT
    async with _proxied_client(ground, limits) as client, client.proxy() as proxy:
        streams = [await asyncio.open_unix_connection(str(proxy.socket)) for _ in range(20)]
        for _, writer in streams:
            writer.write(b"CONNECT ")
        if ground.is_defended:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while sum(_is_over(reader) for reader, _ in streams) < len(streams) - 2:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
        held = sum(not _is_over(reader) for reader, _ in streams)
        for _, writer in streams:
            writer.transport.abort()
    return f"{held} connections" if held > 2 else ""


@EXHAUSTION.stopped_by("egress: a log that is full ends the run's connections")
async def fill_the_log_of_the_proxy(ground: Ground) -> str:
    limits = replace(PATIENT, log_bytes=1000) if ground.is_defended else PATIENT
    async with _proxied_client(ground, limits) as client, client.proxy() as proxy:
        for _ in range(30):
            await client.fetch(proxy, OTHER)
    size = client.log.stat().st_size
    return f"{size} bytes" if size > 1500 else ""


@EXHAUSTION.stopped_by("files of agents are read up to a limit", {"a long one": "long", "a sparse one": "sparse"})
async def have_the_host_read_a_huge_file(ground: Ground, how: str) -> str:
    most = 1 << 20 if ground.is_defended else 1 << 26
    with (ground.folder / "file").open("wb") as file:
        if how == "sparse":
            file.truncate(8 << 20)
        else:
            file.write(bytes(8 << 20))
    content = AgentFile(ground.folder, "file").read(most)
    return f"{len(content)} bytes" if content else ""


@EXHAUSTION.stopped_by("a pipe is not waited for")
async def have_the_host_wait_for_a_pipe(ground: Ground) -> str:
    os.mkfifo(ground.folder / "pipe")
    if ground.is_defended:
        return str(AgentFile(ground.folder, "pipe").read(100) or "")
    code = f"open({str(ground.folder / 'pipe')!r}, 'rb').read()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", code)
    try:
        await asyncio.wait_for(process.wait(), 1)
    except TimeoutError:
        return "it still waits"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return ""


@EXHAUSTION.stopped_by("the size of .worktreeinclude is limited")
async def request_a_huge_list_of_files(ground: Ground) -> str:
    ground.remove(worktree_include, "_TEXT_BYTES_MAX", 1 << 26)
    (ground.folder / ".worktreeinclude").write_text("**/x\n" * 50_000)
    try:
        return f"{len(read_patterns(ground.folder))} patterns"
    except ProgramFailed:
        return ""


@asynccontextmanager
async def _receiving(ground: Ground, **webhook: Any) -> AsyncIterator[tuple[Watch, WebhookReceiver, Strangers]]:
    strangers = Strangers()
    backend = FilesBackend(str(ground.folder / "realm"))
    async with (
        aiohttp.ClientSession() as session,
        opened(backend, session) as watch,
        watch.receiving(webhook=webhook) as receiver,
    ):
        try:
            yield watch, receiver, strangers
        finally:
            # Before the receiver stops, because it waits for them.
            strangers.leave()


@asynccontextmanager
async def _proxied_client(ground: Ground, limits: EgressLimits) -> AsyncIterator[ProxiedClient]:
    certificate = make_certificate(ground.folder, NAMED, OTHER)
    ground.patch.setattr(egress, "is_public", lambda address: address == INTERNET)
    async with serving(certificate, INTERNET, INNER) as web:
        yield ProxiedClient(ground.folder, certificate, web.port, limits=limits)


def _bytes_of(receiver: WebhookReceiver) -> int:
    return sum(receiver._reading.values())


def _is_over(reader: asyncio.StreamReader) -> bool:
    return reader.at_eof() or reader.exception() is not None


def _held(held: list[asyncio.StreamReader], beyond: int) -> str:
    living = sum(not _is_over(reader) for reader in held)
    return f"{living} connections" if living > beyond else ""

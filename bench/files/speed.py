"""Measure publishing and draining: the bus, a bare loop and other queues take turns on one disk."""

import asyncio
import gc
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from bench.files.bare import Action, Bare, Script, Step, record
from bench.files.figures import AHEAD_OF_PEERS, SHARE_OF_BARE, Figures
from bench.files.load import GROUP, STREAM, drain, settle, some_events
from bench.files.peers import Peer, open_peers
from bench.files.variants import make_bus
from kingdom.backends.files.bus import FilesBus
from kingdom.bus import Delivery, Dispatcher, Envelope, Event, Transaction, Worker

_BUS, _WORKER = "kingdom", "kingdom, a worker with reactions"
# Three forms of the bare loop: with the envelopes of the bus; the same in a thread, for a caller whose event loop must
# not wait for the disk; and with plain JSON instead of envelopes.
_BARE, _THREADED, _BAREST = "bare loop", "bare loop in a thread", "bare loop of plain JSON"
_NO_PEERS = {_BUS, _WORKER, _BARE, _THREADED, _BAREST}
_ONE, _GROUP, _DRAIN = "publish 1", f"publish {GROUP}", "drain"
_SINGLES_IN_A_TURN = 10

# Events per second by contestant and phase.
Rates = dict[tuple[str, str], float]


class Clock:
    """The times of one round, by contestant and phase."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], list[float]] = defaultdict(list)

    def note(self, who: str, phase: str, events: int, seconds: float) -> None:
        """Add the time per event of one turn."""
        self._turns[who, phase].append(seconds / events)

    def rates(self) -> Rates:
        """Return events per second, from the lower quartile of the times, because other load only adds time."""
        return {key: 1 / sorted(turns)[len(turns) // 4] for key, turns in self._turns.items()}


async def measure_speed(
    directory: Path, figures: Figures, *, rounds: int, sizes: Sequence[int], strict: bool, variant: str | None
) -> None:
    """Run all contestants in every round. The bounds apply to the medians of the ratios of the rounds.

    A single publish is compared with the loop in a thread, because most of its extra cost is the switch to a thread and
    back. With `strict` it is compared with the bare loop, as the other phases are.
    """
    script = await record(directory / "recorded", sizes)
    found: list[Rates] = []
    durability = {_BUS: "the journal is synced before the call returns, once a transaction"}
    for number in range(rounds):
        clock, here = Clock(), directory / f"round-{number}"
        here.mkdir()
        gc.collect()
        await _run_bus_and_bare(here, script, clock, variant)
        await _run_worker(here / "worker", sum(sizes), clock)
        peers = open_peers(here / "peers")
        durability |= {peer.name: peer.durability for peer in peers}
        _run_peers(peers, sum(sizes), clock)
        found.append(clock.rates())
        shutil.rmtree(here)
    _judge(found, figures, strict=strict)
    figures.facts["events per second"] = _table(found)
    figures.facts["durability"] = durability
    figures.facts["operations of the bare loop"] = script.counts()


async def _run_bus_and_bare(directory: Path, script: Script, clock: Clock, variant: str | None) -> None:
    bare = Bare(directory / "bare", script, envelopes=True)
    threaded = Bare(directory / "threaded", script, envelopes=True)
    barest = Bare(directory / "barest", script, envelopes=False)
    async with make_bus(directory / "bus", variant) as bus:
        await bus.publish(*some_events(1))
        await drain(bus)
        for number, (phase, steps) in enumerate(_turns(script.steps)):
            events = sum(step.events for step in steps if step.name != "claim")
            contestants: list[tuple[str, Callable[[], Awaitable[None]]]] = [
                (_BUS, partial(_bus_turn, bus, steps, some_events(events))),
                (_BARE, partial(_at_once, [bare.prepare(step) for step in steps])),
                (_THREADED, partial(_in_thread, [threaded.prepare(step) for step in steps])),
                (_BAREST, partial(_at_once, [barest.prepare(step) for step in steps])),
            ]
            # Rotate the order, so that no contestant is always first.
            first = number % len(contestants)
            for who, turn in contestants[first:] + contestants[:first]:
                started = time.perf_counter()
                await turn()
                clock.note(who, phase, events, time.perf_counter() - started)
    for each in (bare, threaded, barest):
        each.close()


async def _in_thread(actions: Sequence[Action]) -> None:
    """Run steps in a thread, like a program whose event loop must not wait for the disk."""
    for act in actions:
        await asyncio.to_thread(act)


async def _at_once(actions: Sequence[Action]) -> None:
    for act in actions:
        act()


def _turns(steps: Sequence[Step]) -> Iterator[tuple[str, Sequence[Step]]]:
    """Yield the units of work: some single events, one group, or a claim with its settlement."""
    for name, alike in groupby(steps, lambda step: _DRAIN if step.name in {"claim", "settle"} else step.name):
        size = {_ONE: _SINGLES_IN_A_TURN, _DRAIN: 2}.get(name, 1)
        rest = iter(alike)
        while turn := list(islice(rest, size)):
            yield name, turn


async def _bus_turn(bus: FilesBus, steps: Sequence[Step], events: Sequence[Envelope]) -> None:
    claimed: list[Delivery] = []
    for step in steps:
        if step.name == "claim":
            claimed = await bus.claim(STREAM, GROUP, "bench")
            assert len(claimed) == step.events, "the bus and its recording differ"
        elif step.name == "settle":
            await settle(bus, claimed)
        else:
            await bus.publish(*events[: step.events])
            events = events[step.events :]


def _run_peers(peers: Sequence[Peer], count: int, clock: Clock) -> None:
    for phase, turn in ((_ONE, Peer.fill), (_DRAIN, Peer.drain)):
        for _ in range(count // GROUP):
            for peer in peers:
                started = time.perf_counter()
                turn(peer, GROUP)
                clock.note(peer.name, phase, GROUP, time.perf_counter() - started)
    for peer in peers:
        peer.close()


async def _run_worker(root: Path, count: int, clock: Clock) -> None:
    dispatcher, left = Dispatcher(), count

    @dispatcher.reaction("Measured")
    async def react(_event: Event[Any], _transaction: Transaction) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.stop()

    async with make_bus(root) as bus:
        await bus.publish(*some_events(count))
        worker = Worker(bus, dispatcher, [STREAM])
        started = time.perf_counter()
        await asyncio.wait_for(worker.run(), 60)
        clock.note(_WORKER, _DRAIN, count, time.perf_counter() - started)


def _judge(found: Sequence[Rates], figures: Figures, *, strict: bool) -> None:
    bounded = {(_ONE, _BARE if strict else _THREADED), (_GROUP, _BARE), (_DRAIN, _BARE)}
    for phase in (_ONE, _GROUP, _DRAIN):
        for loop in (_BARE, _THREADED, _BAREST):
            share = statistics.median(rates[_BUS, phase] / rates[loop, phase] for rates in found)
            figures.note(
                f"{phase}, share of the {loop}", share, at_least=SHARE_OF_BARE if (phase, loop) in bounded else None
            )
    peers = [who for who, phase in found[0] if phase == _DRAIN and who not in _NO_PEERS]
    for peer in peers:
        multiple = statistics.median(rates[_BUS, _DRAIN] / rates[peer, _DRAIN] for rates in found)
        figures.note(f"drain, multiple of {peer}", multiple, at_least=AHEAD_OF_PEERS)
    for peer in peers:
        multiple = statistics.median(rates[_BUS, _ONE] / rates[peer, _ONE] for rates in found)
        figures.note(f"publish 1, multiple of {peer}", multiple)


def _table(found: Sequence[Rates]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for who, phase in found[0]:
        table.setdefault(who, {})[phase] = round(statistics.median(rates[who, phase] for rates in found))
    return table

"""`python -m bench.race`: exits 0 only if every bound holds. The last line has the figures as JSON."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.postgres import PrivateCluster
from bench.race.environments import NotInstallableError, find_python
from bench.race.figures import COLUMNS, Figures
from bench.race.nats_store import NatsStore
from bench.race.report import draw_chart, fill_page, print_tables
from bench.race.rounds import Race
from bench.race.sides import NATS_SYNC, POSTGRES, SIDES
from bench.race.stores import SETTINGS, PostgresStore, Store
from bench.servers import ServerUnavailableError, exit_on_sigterm

EVENTS, ROUNDS, MINUTES = 10_000, 3, 12.0
# The processor time of one turn varies with what other machines of the same host do, so the bounds need many turns.
MORE_ROUNDS = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report and check the bounds."""
    options = _parse(arguments)
    started, figures = time.monotonic(), Figures(options.demand)
    load = round(os.getloadavg()[0], 1)
    with ExitStack() as stack:
        interpreters, stores = _set_up(stack, figures, options.sides)
        race = Race(figures, stores, interpreters, events=options.events)
        began = time.monotonic()
        until = began + options.minutes * 60
        rounds, more = race.run(options.columns, rounds=options.rounds, more=options.more, until=until)
    print_tables(figures)
    if options.chart:
        draw_chart(figures, options.chart)
    if options.page:
        about = f"{rounds} rounds and {more} without peers on {datetime.now(UTC):%d %B %Y}, load {load} before"
        fill_page(figures, options.page, about, options.chart)
    complaints = [] if options.report else figures.complaints()
    for words in complaints:
        print(f"bound not kept: {words}", file=sys.stderr)
    seconds = round(time.monotonic() - started)
    facts: dict[str, Any] = {
        "seconds": seconds,
        "setupSeconds": round(began - started),
        "rounds": rounds,
        "roundsWithoutPeers": more,
        "events": options.events,
        "loadBefore": load,
    }
    line = json.dumps(figures.to_json(**facts))
    if options.json == "-":
        print(line)
    else:
        Path(options.json).write_text(line + "\n")
    return 1 if complaints else 0


def _set_up(stack: ExitStack, figures: Figures, names: list[str]) -> tuple[dict[str, Path], dict[str, Store]]:
    """Install the environments and start the servers of some sides. Exclude a peer that cannot be installed."""
    cluster = PrivateCluster(fsync=True, shared_buffers="1GB", settings=SETTINGS, ignore_database_url=True)
    stores: dict[str, Store] = {POSTGRES: PostgresStore(stack.enter_context(cluster))}
    interpreters = {}
    for side in map(SIDES.__getitem__, names):
        try:
            interpreters[side.name] = find_python(side)
            if side.server != POSTGRES:
                stores[side.server] = stack.enter_context(NatsStore(sync=side.server == NATS_SYNC))
        except (NotInstallableError, ServerUnavailableError) as error:
            interpreters.pop(side.name, None)
            figures.exclude(side.name, str(error))
            print(f"{side.name} is excluded: {error}", file=sys.stderr)
    return interpreters, stores


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.race", description=sys.modules["bench.race"].__doc__)
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--chart", type=Path, metavar="FILE", help="the file for a chart (PNG)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="a Markdown page with marks, to write the figures to")
    parser.add_argument("--sides", type=_names(SIDES), default=list(SIDES), help=f"some of {', '.join(SIDES)}")
    parser.add_argument("--columns", type=_names(COLUMNS), default=list(COLUMNS), help=f"some of {', '.join(COLUMNS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"the number of rounds (default {ROUNDS})")
    parser.add_argument(
        "--more",
        type=int,
        default=MORE_ROUNDS,
        help=f"the number of rounds without peers after them (default {MORE_ROUNDS})",
    )
    parser.add_argument("--events", type=int, default=EVENTS, help=f"the events of a drain (default {EVENTS})")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"start no round that would end later (default {MINUTES:g})"
    )
    parser.add_argument("--report", action="store_true", help="measure without requiring any bound")
    parser.add_argument("--demand", type=float, default=1.0, help="how strict the bounds are; below 1 is less strict")
    return parser.parse_args(arguments)


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a reader of names that are separated by commas."""

    def names(text: str) -> list[str]:
        given = text.split(",")
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of: {', '.join(known)}")
        return given

    return names


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())

"""`python -m bench.chaos --system`: chaos over the whole court, and broken courts that the checks must detect."""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.court.chaos import Plan, Report, run_chaos
from bench.court.court_processes import opened
from bench.court.variants import VARIANTS, is_caught
from bench.postgres import PrivateCluster

BACKENDS = ("files", "postgres")
# The bound: kills per second of fault injection.
KILLS_PER_SECOND = 0.25


def run(options: argparse.Namespace) -> int:
    """Inject faults into a court on each backend, check it, and report."""
    console = Console(stderr=True)
    figures: dict[str, Any] = {"ok": True, "backends": {}}
    for backend in BACKENDS if options.backend is None else (options.backend,):
        with place(backend) as (url, postmaster):
            plan = Plan(
                seconds=options.seconds,
                events=options.events,
                seed=options.seed,
                drain_seconds=options.drain,
                postmaster=postmaster,
                broken=(VARIANTS[options.variant].role, options.variant) if options.variant else None,
            )
            report = asyncio.run(_run_chaos(url, plan, partial(console.print, f"{backend}:", markup=False)))
        complaints = [*report.findings, *_too_few(report, plan)]
        for words in complaints[:20]:
            console.print(f"{backend}: {words}", style="red", markup=False)
        figures["backends"][backend] = report.to_json()
        figures["ok"] = figures["ok"] and not complaints
    if not options.no_variants and not options.variant:
        figures["variants_caught"] = {name: asyncio.run(is_caught(name)) for name in VARIANTS}
        figures["ok"] = figures["ok"] and all(figures["variants_caught"].values())
    words = json.dumps(figures)
    if options.json == "-":
        print(words)
    else:
        Path(options.json).write_text(words + "\n")
    return 0 if figures["ok"] else 1


@contextmanager
def place(backend: str) -> Iterator[tuple[str, int | None]]:
    """Yield the URL of the store and the pid of its server, which may be killed. An empty URL means files."""
    if backend == "files":
        yield "", None
        return
    with PrivateCluster() as cluster:
        yield cluster.create_database("court"), cluster.pid


async def _run_chaos(url: str, plan: Plan, say: Callable[[str], None]) -> Report:
    with tempfile.TemporaryDirectory(prefix="kingdom-chaos-") as name:
        async with opened(Path(name), url) as court:
            return await run_chaos(court, plan, say)


def _too_few(report: Report, plan: Plan) -> Iterator[str]:
    if sum(report.kills.values()) < KILLS_PER_SECOND * plan.seconds:
        yield f"only {sum(report.kills.values())} kills in {plan.seconds:g} s"

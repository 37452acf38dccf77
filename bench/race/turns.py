"""One turn: one side in one column, with its own processes."""

import tempfile
from pathlib import Path

from bench.race.figures import LATENCY, RECORD, RECORD_2, Sample, percentile
from bench.race.player import Job, create_counts
from bench.race.processes import Client, Report, SideFailedError, started
from bench.race.sides import BATCHES, WORKERS, Side
from bench.race.stores import Store


def take_turn(store: Store, side: Side, python: Path, column: str, events: int) -> Sample:
    """Run a side in a column with some events, and check that it has done all of the work."""
    with (
        tempfile.TemporaryDirectory() as directory,
        store.place(side, python, waiting=events if column in WORKERS else 0) as address,
    ):
        jobs = _jobs(side, column, events, address, Path(directory) / "counts")
        with started(python, side.module, jobs) as clients:
            server = store.processor_seconds()
            reports = _run(clients)
            server = store.processor_seconds() - server
            for client in clients:
                client.finish()
        _check(side, column, events, store.count_waiting(side, address), reports)
        return _sample(events, reports, server)


def _jobs(side: Side, column: str, events: int, address: str, counts: Path) -> list[Job]:
    options = dict(side.options)
    if column in BATCHES:
        return [Job(role="publish", dsn=address, events=events, batch=BATCHES[column], options=options)]
    workers = WORKERS.get(column, 1)
    create_counts(counts, workers)
    if column == LATENCY:
        roles = ["receive", "send"]
    else:
        roles = ["record" if column in (RECORD, RECORD_2) else "drain"] * workers
    return [
        Job(
            role=role,
            dsn=address,
            events=events,
            counts="" if role == "send" else str(counts),
            worker=0 if role == "send" else number,
            options=options,
        )
        for number, role in enumerate(roles)
    ]


def _run(clients: list[Client]) -> list[Report]:
    for client in clients:
        client.start()
    return [client.report() for client in clients]


def _check(side: Side, column: str, events: int, waiting: int | None, reports: list[Report]) -> None:
    """Refuse the figures of a side that has lost or left events. Repeated ones are allowed."""
    expected = events if column in BATCHES else 0
    if waiting not in (None, expected):
        raise SideFailedError(f"{side.name}, {column}: {waiting} of {events} events wait instead of {expected}")
    if column in WORKERS and (handled := sum(report.events for report in reports)) < events:
        raise SideFailedError(f"{side.name}, {column}: only {handled} of {events} events were handled")


def _sample(events: int, reports: list[Report], server_seconds: float) -> Sample:
    seconds = max(report.ended for report in reports) - min(report.began for report in reports)
    latencies = [latency for report in reports for latency in report.latencies]
    return Sample(
        rate=events / seconds,
        client_us=sum(report.cpu for report in reports) / events * 1e6,
        server_us=server_seconds / events * 1e6,
        p50_ms=percentile(latencies, 0.5) if latencies else None,
        p99_ms=percentile(latencies, 0.99) if latencies else None,
    )

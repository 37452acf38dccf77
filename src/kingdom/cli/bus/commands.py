"""`kingdom bus …`: inspect and operate the event bus."""

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.table import Table
from rich.text import Text

from kingdom import bootstrap
from kingdom.bus.operations import COUNT_LIMIT, Retention, StreamStats
from kingdom.bus.throughput import StreamThroughput, read_throughput
from kingdom.bus.why import why as explain
from kingdom.chronicle.catalog import log_clean_up
from kingdom.cli.bus import dead_letters, publish, tail, verify, work
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, application_for_any_stream, command
from kingdom.cli.framework.inputs import DAYS_MAX, duration
from kingdom.cli.framework.json_result import array, one
from kingdom.cli.framework.output import table
from kingdom.cli.framework.watching import Watch, print_state, watch
from kingdom.clock import utc_now
from kingdom.errors import NotFound
from kingdom.text import format_duration
from kingdom.views.bus import (
    CancelResult,
    ExplainedSituation,
    MigrationResult,
    PauseResult,
    PinView,
    ResumeResult,
    RetentionResult,
    StreamStatsView,
    StreamThroughputView,
)
from kingdom.views.camel import to_json_object

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Use the event bus: publish, run workers, inspect, repair."
)
_Event = Annotated[UUID, typer.Argument(metavar="EVENT", help="The id of an event.")]
_Stream = Annotated[str, typer.Argument(metavar="STREAM")]


@command(app, "migrate", result=one(MigrationResult))
async def migrate(
    call: CommandCall,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be applied.")] = False,
) -> None:
    """Migrate the store to this version; safe to run repeatedly and concurrently.

    Example: kingdom bus migrate --database-url postgresql://user@host/database

    JSON: {schema, dryRun, migrations: [name]}.
    """
    settings = call.settings
    act = bootstrap.pending_migrations if dry_run else bootstrap.migrate
    names = await act(settings.direct_url, schema=settings.schema)
    if call.output.json:
        call.output.document(MigrationResult(schema=settings.schema, dry_run=dry_run, migrations=names))
    verb = "Would apply" if dry_run else "Applied"
    call.output.say(*(f"{verb} {name} to schema {settings.schema}." for name in names))
    if not names:
        what = settings.database_url if settings.is_files else f"Schema {settings.schema}"
        call.output.say(f"{what} is up to date.")


for _part in (publish, work):
    app.add_typer(_part.app)


@command(app, "stats", result=array(StreamStatsView))
async def stats(
    call: CommandCall,
    *,
    repeat: Watch = False,
    interval: Annotated[str, typer.Option(help="The time between refreshes.")] = "2s",
) -> None:
    """Show every stream that has open or dead events, or is paused.

    Example: kingdom bus stats --watch

    JSON: an array of {stream, pending, processing, dead, oldestPendingSeconds, paused}; with --watch an array per line
    whenever something changes. Counting stops at 10000.
    """
    pause = duration(interval).total_seconds()
    async with call.operations() as operations:
        if repeat:
            await watch(
                call.output, operations.stats, _stats_view, _documents, relevant=_without_age, every_seconds=pause
            )
        print_state(call.output, await operations.stats(), _stats_view, _documents)


@command(app, "throughput", result=array(StreamThroughputView))
async def throughput(call: CommandCall) -> None:
    """Show how many events each stream handled in the last hour. Workers report their counts every 15 seconds.

    Example: kingdom bus throughput

    JSON: an array of {stream, until, minutes: [number]}, where `minutes` are the 60 minutes before `until`.
    """
    async with (
        call.bus(call.application() or application_for_any_stream(), create=False) as bus,
        bus.transaction() as transaction,
    ):
        found = await read_throughput(transaction, utc_now())
    print_state(call.output, found, _throughput_view, lambda rows: [to_json_object(row) for row in rows])


@command(app, "why", result=array(ExplainedSituation))
async def why(call: CommandCall, event: _Event) -> None:
    """Say why an event is not running, for each stream that has or had it.

    Example: kingdom bus why 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01

    JSON: an array of {why, eventId, stream, type, status, attempt, maxAttempts, dueAt, …}.
    """
    async with call.operations() as operations:
        situations = await operations.situations(event)
    if not situations:
        raise NotFound(f"there is no event {event}: it was never published, or it is no longer in the archive")
    if call.output.json:
        call.output.document([{"why": explain(each), **to_json_object(each)} for each in situations])
    for each in situations:
        call.output.say(f"{each.type} in {each.stream}: {explain(each)}")


app.add_typer(tail.app)
app.add_typer(dead_letters.app)


@command(app, "pause", result=one(PauseResult))
async def pause(
    call: CommandCall,
    stream: _Stream,
    *,
    reason: Annotated[str, typer.Option(help="The reason, which `why` and `stats` show.")],
) -> None:
    """Pause a stream for all workers; running handlers finish.

    Example: kingdom bus pause orders --reason "payment provider is down"

    JSON: {stream, reason, actor}.
    """
    async with call.operations(stream) as operations:
        await operations.pause(stream, reason=reason, actor=call.settings.actor)
    if call.output.json:
        call.output.document(PauseResult(stream=stream, reason=reason, actor=call.settings.actor))
    call.output.say(f"Stream {stream} is paused. Resume it: kingdom bus resume {stream}")


@command(app, "resume", result=one(ResumeResult))
async def resume(call: CommandCall, stream: _Stream) -> int | None:
    """Resume a paused stream.

    Example: kingdom bus resume orders

    JSON: {stream, wasPaused}; the exit code is 1 if it was not paused.
    """
    async with call.operations(stream) as operations:
        was_paused = await operations.resume(stream, actor=call.settings.actor)
    if call.output.json:
        call.output.document(ResumeResult(stream=stream, was_paused=was_paused))
    if was_paused:
        call.output.say(f"Stream {stream} is resumed.")
        return None
    call.output.note(f"Stream {stream} was not paused; `kingdom bus stats` shows the paused ones.")
    return exit_code.FAILED


@command(app, "cancel", result=one(CancelResult))
async def cancel(
    call: CommandCall, event: _Event, *, stream: Annotated[str, typer.Option(help="The stream to cancel it in.")]
) -> None:
    """Cancel an event, which makes it dead: a waiting event at once, a running event when its worker renews the lease.

    An ordered stream declares whether a cancelled event is skipped or blocks the later events of its key. Without
    --app, the cancelled event blocks them until it is redriven or discarded.

    Example: kingdom bus cancel 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01 --stream orders

    JSON: {eventId, stream, result}, where result is cancelled or requested.
    """
    async with call.operations(stream) as operations:
        result = await operations.cancel(event, stream, actor=call.settings.actor)
    if call.output.json:
        call.output.document(CancelResult(event_id=event, stream=stream, result=result))
    if result == "cancelled":
        call.output.say(
            "It is dead now. Retry it with `kingdom bus redrive`, or discard it with `kingdom bus dead discard`."
        )
    else:
        call.output.say("It is running: its worker cancels it at its next lease renewal.")


@command(app, "retain", result=one(RetentionResult))
async def retain(
    call: CommandCall,
    *,
    archive_days: Annotated[
        float | None, typer.Option(min=0, max=DAYS_MAX, help="Days to keep finished events.")
    ] = None,
    log_days: Annotated[float | None, typer.Option(min=0, max=DAYS_MAX, help="Days to keep the log.")] = None,
    text_days: Annotated[
        float | None, typer.Option(min=0, max=DAYS_MAX, help="Days to keep copies of transcripts and diffs.")
    ] = None,
    ahead_days: Annotated[
        int | None, typer.Option(min=1, max=DAYS_MAX, help="Create partitions for this many days ahead.")
    ] = None,
) -> None:
    """Create the partitions of the next days and remove expired data; workers do this by themselves.

    Without an option, a value comes from the application, otherwise from `chamberlain.retention` in kingdom.yaml.
    Without both, finished events and copies are kept for 7 days, and the log for 90 days. How long records are kept
    depends on their kind, which --app declares.

    Example: kingdom bus retain --archive-days 14

    JSON: {partitionsMade, partitionsDropped, dedupKeysRemoved, recordsRemoved}.
    """
    application = call.application()
    configured = application.retention if application else _configured_retention(call)
    days = {"archive": archive_days, "log": log_days, "run_texts": text_days}
    given = {name: timedelta(days=each) for name, each in days.items() if each is not None}
    retention = replace(configured, **given, partitions_ahead_days=ahead_days or configured.partitions_ahead_days)
    async with call.bus(application or application_for_any_stream(), create=False) as bus:
        report = await bootstrap.operations_of(bus).retain(retention)
        if report.removed:
            await log_clean_up(bus, call.settings.actor, report.removed)
    if call.output.json:
        call.output.document(to_json_object(report))
    call.output.say(
        f"Created {report.partitions_made} partition(s) and dropped {report.partitions_dropped}; removed"
        f" {report.dedup_keys_removed} dedup key(s) and {report.records_removed} record(s)."
    )


@command(app, "pins", result=array(PinView))
async def pins(call: CommandCall) -> None:
    """Show what prevents the database from removing old row versions, oldest first.

    Example: kingdom bus pins

    JSON: an array of {what, ageSeconds, detail}.
    """
    async with call.operations() as operations:
        found = await operations.pins()
    if call.output.json:
        call.output.document([to_json_object(pin) for pin in found])
    elif found:
        call.output.table(
            ("what", "age", "detail"), [(pin.what, format_duration(pin.age_seconds), pin.detail) for pin in found]
        )
    else:
        call.output.say("Nothing prevents the database from removing old row versions.")


app.add_typer(verify.app)


def _configured_retention(call: CommandCall) -> Retention:
    """Return the retention of the settings file, or the default retention if there is no settings file."""
    if call.settings.file is None:
        return Retention()
    # The other commands of this group do not need the modules of the court.
    from kingdom.court.chamberlain.retention import store_retention  # noqa: PLC0415 - loaded on demand

    return store_retention(call.part("chamberlain").chamberlain.retention)


def _documents(rows: list[StreamStats]) -> list[dict[str, Any]]:
    return [to_json_object(row) for row in rows]


def _without_age(rows: list[StreamStats]) -> list[StreamStats]:
    """Return the rows without their ages, which always change."""
    return [replace(row, oldest_pending_seconds=0.0) for row in rows]


def _stats_view(rows: list[StreamStats]) -> Table | Text:
    if not rows:
        return Text("No stream has open or dead events, and none is paused.")
    return table(
        ("stream", "pending", "processing", "dead", "oldest due", "paused"),
        [
            (
                row.stream,
                _count(row.pending),
                row.processing,
                _count(row.dead),
                format_duration(row.oldest_pending_seconds) if row.oldest_pending_seconds else None,
                row.paused,
            )
            for row in rows
        ],
    )


def _throughput_view(rows: list[StreamThroughput]) -> Table | Text:
    if not rows:
        return Text("No stream has handled events in the last hour.")
    return table(
        ("stream", "a minute", "last hour"), [(row.stream, f"{row.per_minute:.1f}", row.last_hour) for row in rows]
    )


def _count(number: int) -> int | str:
    return f"{COUNT_LIMIT}+" if number >= COUNT_LIMIT else number

"""Ids from the store for completion: a few of each kind, read quickly and without creating a store."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from kingdom.bootstrap import inspect_embedded, is_embedded, operations_of
from kingdom.bus.operations import DeadFilter
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.cli.framework.command import CommandCall, application_for_any_stream
from kingdom.cli.framework.output import CommandOutput
from kingdom.cli.framework.workflow_ids import LAST, find_workflow, short
from kingdom.cli.general.lookup import generals_directory
from kingdom.court.followups.records import FOLLOWUPS
from kingdom.court.package import Package
from kingdom.court.package_files import load_packages
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.questions import QUESTIONS
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.workflow.records import DELETED, GITS, HOSTS, MCP_SERVERS, TEMPLATES, WORKFLOWS

# A person waits for the candidates, so the search ends after this time.
_TIMEOUT_SECONDS = 3.0
_IDLE_LIMIT = timedelta(seconds=3)
_PAGE_SIZE = 100
# The largest character: a prefix with this character at its end sorts after every id with the prefix.
_LAST_CHARACTER = "\U0010ffff"
_GENERALS, _DEAD, _STREAMS, _CHECKPOINTS, _TASKS, _CHOICES = "generals", "dead", "streams", "points", "tasks", "choices"
# The sources of ids for an argument or option, by its name, or by NOUN:NAME if the sources depend on the noun.
_SOURCES: dict[str, tuple[str, ...]] = {
    "WORKFLOW": (WORKFLOWS.name, ASSIGNMENTS.name),
    "RUN|ASSIGNMENT": (WORKFLOWS.name, ASSIGNMENTS.name),
    "RUN|WORK|SOLDIER": (WORKFLOWS.name, ASSIGNMENTS.name),
    "ASSIGNMENT|EVENT|RUN": (ASSIGNMENTS.name, EVENTS.name, WORKFLOWS.name),
    "ID": (WORKFLOWS.name, ASSIGNMENTS.name, EVENTS.name, PETITIONS.name, TEMPLATES.name, GITS.name, _GENERALS, _DEAD),
    "TEMPLATE": (TEMPLATES.name,),
    "EVENT_ID": (EVENTS.name,),
    "EVENT": (_DEAD,),
    "PETITION": (PETITIONS.name,),
    "PULL_REQUEST": (FOLLOWUPS.name,),
    "STREAM": (_STREAMS,),
    "--stream": (_STREAMS,),
    "CHECKPOINT": (_CHECKPOINTS,),
    "base|CHECKPOINT": (_CHECKPOINTS,),
    "--general": (_GENERALS,),
    "answer:ASSIGNMENT": (QUESTIONS.name,),
    "answer:TEXT": (_CHOICES,),
    "assignment:ASSIGNMENT": (ASSIGNMENTS.name,),
    "workflow:TASK": (_TASKS,),
    "git:NAME": (GITS.name,),
    "mcp:NAME": (MCP_SERVERS.name,),
    "host:NAME": (HOSTS.name,),
    "general:NAME": (_GENERALS,),
}
_KINDS: dict[str, RecordKind] = {
    kind.name: kind
    for kind in (WORKFLOWS, ASSIGNMENTS, EVENTS, PETITIONS, FOLLOWUPS, TEMPLATES, GITS, MCP_SERVERS, HOSTS, QUESTIONS)
}
# The meaning of `last` for each kind.
_NEWEST = {
    WORKFLOWS.name: "the newest run",
    ASSIGNMENTS.name: "the newest assignment",
    EVENTS.name: "the newest event",
    QUESTIONS.name: "the newest question",
}


def sources_of(noun: str, named: Iterable[str]) -> tuple[str, ...]:
    """Return the sources of ids for a parameter of a noun's command."""
    keys = [key for name in named for key in (f"{noun}:{name}", name)]
    return next((_SOURCES[key] for key in keys if key in _SOURCES), ())


def live_ids(
    noun: str, named: Iterable[str], given: Sequence[str], typed: str, shared: dict[str, str]
) -> list[tuple[str, str]]:
    """Return ids that begin with the typed text, each with its state. `given` has the arguments before that text."""
    sources = sources_of(noun, named)
    return asyncio.run(_find_ids(sources, given, typed, shared)) if sources else []


async def _find_ids(
    sources: Sequence[str], given: Sequence[str], typed: str, shared: dict[str, str]
) -> list[tuple[str, str]]:
    call = CommandCall(CommandOutput(json=False), shared)
    found = [(package.name, package.general.description) for package in _generals(call)] if _GENERALS in sources else []
    if set(sources) == {_GENERALS} or _needs_start(call.settings.database_url):
        return found
    # After the time limit, the ids found so far are offered.
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS),
            call.bus(application_for_any_stream(), create=False, idle_limit=_IDLE_LIMIT) as bus,
        ):
            # Where a run is accepted, `last` means the newest run.
            last = WORKFLOWS.name if WORKFLOWS.name in sources else sources[0]
            for source in sources:
                if source in _KINDS:
                    newest = _NEWEST.get(source, "") if source == last else ""
                    found += [each async for each in _records(bus, _KINDS[source], typed, newest)]
                elif source in _OTHERS:
                    found += await _OTHERS[source](bus, given)
    return found


def _needs_start(url: str) -> bool:
    """Return whether reading the store would start an embedded server."""
    return is_embedded(url) and not inspect_embedded(url).has_keeper


async def _records(bus: Bus, kind: RecordKind, typed: str, newest: str) -> AsyncIterator[tuple[str, str]]:
    """Yield ids of a kind with their states. Questions that are no longer open are left out.

    If `newest` is not empty, yield `last` too, with `newest` as its meaning.
    """
    states = [each for each in kind.directories if each != DELETED and not (kind is QUESTIONS and each in kind.final)]
    async with bus.transaction() as transaction:
        exact = await transaction.get(kind.name, typed) if typed else None
        if exact and exact.state in states:
            yield exact.id, exact.state.lower()
        for state in states:
            for record in await _newest_records(transaction, kind, state, typed):
                yield record.id, state.lower()
        # `last` is offered only if it matches the typed text and a record exists.
        searched = states if newest and LAST.startswith(typed) else []
        if any([await transaction.find(RecordQuery(kind=kind.name, state=each, limit=1)) for each in searched]):
            yield LAST, newest


async def _newest_records(transaction: Transaction, kind: RecordKind, state: str, typed: str) -> list[Record]:
    """Return the records with the last ids of a prefix. Among ids of the same form, the last ones are the newest."""
    after = typed + _LAST_CHARACTER
    query = RecordQuery(kind=kind.name, state=state, after=after, limit=_PAGE_SIZE, descending=True)
    found = [each for each in await transaction.find(query) if each.id.startswith(typed) and each.id != typed]
    return found[::-1]


async def _dead(bus: Bus, _given: Sequence[str]) -> list[tuple[str, str]]:
    letters = await operations_of(bus).dead_letters(DeadFilter(), _PAGE_SIZE)
    return [(str(each.event_id), f"{each.type} in {each.stream}: {each.error_code}") for each in letters]


async def _streams(bus: Bus, _given: Sequence[str]) -> list[tuple[str, str]]:
    rows = await operations_of(bus).stats()
    return [(row.stream, f"{row.pending} pending, {row.dead} dead") for row in rows]


async def _choices(bus: Bus, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the choices of the question in the previous argument."""
    async with bus.transaction() as transaction:
        ask = await transaction.get(QUESTIONS.name, given[0])
    return [(choice, "") for choice in ask.doc["choices"]] if ask else []


async def _checkpoints(bus: Bus, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the checkpoints of the run in the previous argument."""
    workflow = await find_workflow(bus, given[0])
    return [(short(workflow, point.id), short(workflow, point.work_id)) for point in workflow.checkpoints]


async def _tasks(bus: Bus, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the tasks of the run in the previous argument."""
    workflow = await find_workflow(bus, given[0])
    return [(short(workflow, task.id), work.definition.name) for work in workflow.works for task in work.tasks]


def _generals(call: CommandCall) -> Sequence[Package]:
    return load_packages(generals_directory(call, "")).packages


_OTHERS = {_DEAD: _dead, _STREAMS: _streams, _CHOICES: _choices, _CHECKPOINTS: _checkpoints, _TASKS: _tasks}

"""The ids that are in the store right now, for completion: a few of each kind, quickly, and nothing is ever made."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from kingdom.bootstrap import inspect_embedded, is_embedded, operations_of
from kingdom.bus.operations import DeadFilter
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.cli.command import Call, undeclared
from kingdom.cli.general_named import generals_place
from kingdom.cli.output import Output
from kingdom.cli.workflow_id import LAST, find_workflow, short
from kingdom.court.asks import ASKS
from kingdom.court.package import Package
from kingdom.court.package_files import load_packages
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.workflow.records import DELETED, GITS, HOSTS, MCP_SERVERS, TEMPLATES, WORKFLOWS

_PATIENCE_SECONDS = 3.0
_IDLE_LIMIT = timedelta(seconds=3)
_PAGE, _PAGES_MAX = 100, 10
# Behind every id that begins with what stands before it.
_LAST_CHARACTER = "\U0010ffff"
_GENERALS, _DEAD, _STREAMS, _POINTS, _TASKS, _CHOICES = "generals", "dead", "streams", "points", "tasks", "choices"
# What an argument or an option can be, by how its command calls it; NOUN:NAME where it depends on the noun.
_SOURCES: dict[str, tuple[str, ...]] = {
    "WORKFLOW": (WORKFLOWS.name, ASSIGNMENTS.name),
    "RUN|TASK": (WORKFLOWS.name, ASSIGNMENTS.name),
    "RUN|WORK|SOLDIER": (WORKFLOWS.name, ASSIGNMENTS.name),
    "TASK|EVENT|RUN": (ASSIGNMENTS.name, EVENTS.name, WORKFLOWS.name),
    "ID": (WORKFLOWS.name, ASSIGNMENTS.name, EVENTS.name, PETITIONS.name, TEMPLATES.name, GITS.name, _GENERALS, _DEAD),
    "TEMPLATE": (TEMPLATES.name,),
    "EVENT_ID": (EVENTS.name,),
    "EVENT": (_DEAD,),
    "PETITION": (PETITIONS.name,),
    "STREAM": (_STREAMS,),
    "--stream": (_STREAMS,),
    "CHECKPOINT": (_POINTS,),
    "base|CHECKPOINT": (_POINTS,),
    "--general": (_GENERALS,),
    "answer:TASK": (ASKS.name,),
    "answer:TEXT": (_CHOICES,),
    "assignment:TASK": (ASSIGNMENTS.name,),
    "workflow:TASK": (_TASKS,),
    "git:NAME": (GITS.name,),
    "mcp:NAME": (MCP_SERVERS.name,),
    "host:NAME": (HOSTS.name,),
    "general:NAME": (_GENERALS,),
}
_KINDS: dict[str, RecordKind] = {
    kind.name: kind for kind in (WORKFLOWS, ASSIGNMENTS, EVENTS, PETITIONS, TEMPLATES, GITS, MCP_SERVERS, HOSTS, ASKS)
}
# What `last` means.
_NEWEST = {
    WORKFLOWS.name: "the newest run",
    ASSIGNMENTS.name: "the newest assignment",
    EVENTS.name: "the newest event",
    ASKS.name: "the newest question",
}


def sources_of(noun: str, named: Iterable[str]) -> tuple[str, ...]:
    """Return where the ids are that a parameter of a command of a noun can have."""
    keys = [key for name in named for key in (f"{noun}:{name}", name)]
    return next((_SOURCES[key] for key in keys if key in _SOURCES), ())


def live_ids(
    noun: str, named: Iterable[str], given: Sequence[str], begun: str, shared: dict[str, str]
) -> list[tuple[str, str]]:
    """Return ids that begin as a person began to type, each with where its thing stands."""
    sources = sources_of(noun, named)
    return asyncio.run(_look(sources, given, begun, shared)) if sources else []


async def _look(
    sources: Sequence[str], given: Sequence[str], begun: str, shared: dict[str, str]
) -> list[tuple[str, str]]:
    call = Call(Output(json=False), shared)
    found = [(package.name, package.general.description) for package in _generals(call)] if _GENERALS in sources else []
    if set(sources) == {_GENERALS} or _is_asleep(call.settings.database_url):
        return found
    # What was found until then is better than nothing.
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(_PATIENCE_SECONDS),
            call.bus(undeclared(), create=False, idle_limit=_IDLE_LIMIT) as bus,
        ):
            # Where a run may be named, the last one is the newest run.
            last = WORKFLOWS.name if WORKFLOWS.name in sources else sources[0]
            for source in sources:
                if source in _KINDS:
                    newest = _NEWEST.get(source, "") if source == last else ""
                    found += [each async for each in _records(bus, _KINDS[source], begun, newest)]
                elif source in _OTHERS:
                    found += await _OTHERS[source](bus, given)
    return found


def _is_asleep(url: str) -> bool:
    """Tell whether a look into a store would start a server, and with it whatever its settings name."""
    return is_embedded(url) and not inspect_embedded(url).has_keeper


async def _records(bus: Bus, kind: RecordKind, begun: str, newest: str) -> AsyncIterator[tuple[str, str]]:
    """Yield ids of a kind, and `last` where that means the newest; of questions only those that are open."""
    states = [each for each in kind.directories if each != DELETED and not (kind is ASKS and each in kind.final)]
    async with bus.transaction() as transaction:
        whole = await transaction.get(kind.name, begun) if begun else None
        if whole and whole.state in states:
            yield whole.id, whole.state.lower()
        for state in states:
            for record in await _last(
                transaction, RecordQuery(kind=kind.name, state=state, after=begun, limit=_PAGE), begun
            ):
                yield record.id, state.lower()
        # A word that begins otherwise is not worth the look.
        begun_so = states if newest and LAST.startswith(begun) else []
        if any([await transaction.find(RecordQuery(kind=kind.name, state=each, limit=1)) for each in begun_so]):
            yield LAST, newest


async def _last(transaction: Transaction, query: RecordQuery, begun: str) -> list[Record]:
    """Return the records of the last ids that begin so, which are the newest, without a walk through all of them."""
    page = await _page(transaction, query, begun)
    if len(page) < query.limit:
        return page
    last = await _last_id(transaction, query, begun, page[-1].id)
    few: list[Record] = []
    for length in range(len(last) - 1, len(begun) - 1, -1):
        page = await _page(transaction, replace(query, after=last[:length]), begun)
        if len(page) == query.limit:
            break
        few = page
    for _ in range(_PAGES_MAX):
        more = await _page(transaction, replace(query, after=page[-1].id), begun)
        page = [*page, *more][-query.limit :]
        if len(more) < query.limit:
            return page
    return few or page


async def _last_id(transaction: Transaction, query: RecordQuery, begun: str, known: str) -> str:
    """Return the last id that begins so, from one that is known: each look finds a later one or one character of it."""
    at = len(begun)
    while at < len(known):
        after = known[: at + 1] + _LAST_CHARACTER
        later = await _page(transaction, replace(query, after=after, limit=1), begun)
        known, at = (later[0].id, at) if later else (known, at + 1)
    return known


async def _page(transaction: Transaction, query: RecordQuery, begun: str) -> list[Record]:
    # Ids that begin so come right behind it, and others behind them.
    return [record for record in await transaction.find(query) if record.id.startswith(begun)]


async def _dead(bus: Bus, _given: Sequence[str]) -> list[tuple[str, str]]:
    letters = await operations_of(bus).dead_letters(DeadFilter(), _PAGE)
    return [(str(each.event_id), f"{each.type} in {each.stream}: {each.error_code}") for each in letters]


async def _streams(bus: Bus, _given: Sequence[str]) -> list[tuple[str, str]]:
    rows = await operations_of(bus).stats()
    return [(row.stream, f"{row.pending} pending, {row.dead} dead") for row in rows]


async def _choices(bus: Bus, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return what the question that was named before wants to hear."""
    async with bus.transaction() as transaction:
        ask = await transaction.get(ASKS.name, given[0])
    return [(choice, "") for choice in ask.doc["choices"]] if ask else []


async def _points(bus: Bus, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the checkpoints of the run that was named before."""
    workflow = await find_workflow(bus, given[0])
    return [(short(workflow, point.id), short(workflow, point.work_id)) for point in workflow.checkpoints]


async def _tasks(bus: Bus, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the tasks of the run that was named before."""
    workflow = await find_workflow(bus, given[0])
    return [(short(workflow, task.id), work.definition.name) for work in workflow.works for task in work.tasks]


def _generals(call: Call) -> Sequence[Package]:
    return load_packages(generals_place(call, "")).packages


_OTHERS = {_DEAD: _dead, _STREAMS: _streams, _CHOICES: _choices, _POINTS: _points, _TASKS: _tasks}

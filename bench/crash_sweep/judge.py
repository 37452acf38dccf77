"""Compare a run that had a crash with a run without one, and list the differences that are not allowed."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.crash_sweep.ending import Ending, Event
from bench.crash_sweep.scene import RESPONSE_USD
from bench.crash_sweep.steps import AGENT_KILLED, ENGINE, Point
from bench.crash_sweep.transcripts import TaskTranscript
from kingdom.workflow.model.steps.step import LOST, OVER, UNEXPECTED

_ANSWERED = "answered"
_CENT_OF_A_CENT = 1e-4
# Each of these events is in the log exactly once per subject, however many attempts there were.
_ONCE = frozenset(
    {
        "WorkflowCreated",
        "WorkflowStatusChanged",
        "WorkflowStarted",
        "WorkflowCompleted",
        "WorkTreeCreated",
        "WorkVerified",
        "WorkCompleted",
        "TaskCompleted",
        "ReportGenerated",
        "CheckpointCreated",
        _ANSWERED,
    }
)
# An agent that dies with its host does not report its end.
_MAY_BE_MISSING = frozenset({"AgentStopped"})
# The cost of an interrupted turn may be reported at any time.
_COST_EVENTS = frozenset({"AgentSpent", "WorkflowCostCorrected"})


@dataclass(frozen=True, slots=True)
class _Recovery:
    """The events that one recovery may add to the log: those of `types`.

    An event of the type `restart` starts the next attempt, and may occur `at_most` times. An answer that arrives late
    may be ignored with one of the reasons in `late`.
    """

    types: frozenset[str]
    restart: str
    at_most: int
    late: tuple[str, ...]


_HOST_RECOVERY = _Recovery(
    types=frozenset({"QueryReconciled", "WorkflowDisplaced", "WorkflowPlaced"}),
    restart="WorkflowPlaced",
    at_most=2,
    late=(LOST,),
)
_AGENT_RECOVERY = _Recovery(
    types=frozenset({"QueryReconciled", "AgentError", "WorkRetried"}),
    restart="WorkRetried",
    at_most=1,
    late=(OVER, UNEXPECTED),
)

_Key = tuple[str, str, str]


def judge(reference: Ending, ending: Ending, point: Point | None = None) -> list[str]:
    """Describe what is wrong with the result of a run that crashed at a point, compared with a run without a crash."""
    undisturbed = point is None or point.role == ENGINE
    findings = [
        *_check_end(ending),
        *ending.leftovers,
        *_check_results(reference, ending),
        *_check_transcripts(reference, ending, again_max=0 if undisturbed else 1),
        *_check_cost(reference, ending, slack_usd=0 if undisturbed else RESPONSE_USD),
    ]
    if point is None or point.role == ENGINE:
        return [*findings, *_check_same_events(reference, ending)]
    recovery = _AGENT_RECOVERY if point.kind == AGENT_KILLED else _HOST_RECOVERY
    return [*findings, *_check_recovery(reference, ending, recovery)]


def _check_end(ending: Ending) -> Iterator[str]:
    if ending.status != "COMPLETED":
        yield f"the run is {ending.status}: {ending.reason or 'it did not come to its end in time'}"


def _check_results(reference: Ending, ending: Ending) -> Iterator[str]:
    for name in ("trees", "checkpoints", "reports"):
        expected, found = getattr(reference, name), getattr(ending, name)
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                yield f"{name}: {key} is {found.get(key)!r} instead of {expected.get(key)!r}"


def _check_transcripts(reference: Ending, ending: Ending, *, again_max: int) -> Iterator[str]:
    """Describe the Tasks whose steps and answers differ from the reference, and too many repeated steps."""
    nothing = TaskTranscript(steps=[], answers=0)
    for task in sorted(reference.transcripts.keys() | ending.transcripts.keys()):
        expected, found = reference.transcripts.get(task, nothing), ending.transcripts.get(task, nothing)
        if (expected.steps, expected.answers) != (found.steps, found.answers):
            yield f"transcripts: {task} has {found} instead of {expected}"
    if ending.steps_again > again_max:
        yield f"transcripts: {ending.steps_again} steps were repeated, at most {again_max} are allowed"


def _check_cost(reference: Ending, ending: Ending, *, slack_usd: float) -> Iterator[str]:
    """Describe wrong costs. After a kill, a request whose response was lost may be paid for twice."""
    if abs(ending.cost_usd - ending.transcript_cost_usd) > _CENT_OF_A_CENT:
        yield f"the run has cost ${ending.cost_usd:.4f}, but ${ending.transcript_cost_usd:.4f} by its transcripts"
    if abs(ending.cost_usd - reference.cost_usd) > slack_usd + _CENT_OF_A_CENT:
        yield f"the run has cost ${ending.cost_usd:.4f} instead of ${reference.cost_usd:.4f}"


def _check_same_events(reference: Ending, ending: Ending) -> Iterator[str]:
    """Describe any difference in the events, because a killed engine must not change them."""
    for number, (expected, found) in enumerate(itertools.zip_longest(reference.events, ending.events)):
        if expected != found:
            yield f"event {number} is {found} instead of {expected}"
            return


def _check_recovery(reference: Ending, ending: Ending, recovery: _Recovery) -> Iterator[str]:
    """Describe differences in the events other than repeated attempts."""
    events = _without_progress([event for event in ending.events if event.type not in _COST_EVENTS])
    counting = [event for event in events if not event.ignored]
    for event in events:
        if event.ignored and not any(reason in event.ignored for reason in recovery.late):
            yield f"an answer was ignored: {event}"
    wanted_events = _without_progress(reference.events)
    expected = [_key(event) for event in wanted_events if event.type not in _MAY_BE_MISSING]
    keys = [_key(event) for event in counting]
    firsts = [key for key in dict.fromkeys(keys) if key in set(expected)]
    for number, (first, wanted) in enumerate(itertools.zip_longest(firsts, expected)):
        if first != wanted:
            yield f"the new event {number} is {first} instead of {wanted}"
            break
    yield from _check_repeats(counting, recovery)
    known = {_key(event) for event in reference.events}
    for key in dict.fromkeys(keys):
        kind, _, detail = key
        if key not in known and kind not in recovery.types and (kind != "WorkStatusChanged" or detail == "FAILED"):
            yield f"{key} must not happen in this run"


def _without_progress(events: Sequence[Event]) -> list[Event]:
    """Leave out the event with the status of the Work after each completed Task, because these events are all equal."""
    pairs = zip([None, *events], events, strict=False)
    return [
        event
        for before, event in pairs
        if not (before and before.type == "TaskCompleted" and event.type == "WorkStatusChanged")
    ]


def _check_repeats(events: list[Event], recovery: _Recovery) -> Iterator[str]:
    """Describe events that occur too often: some may occur only once, others only once between two restarts."""
    for key, count in Counter(_key(event) for event in events).items():
        if key[0] in _ONCE and count > 1:
            yield f"{key} happened {count} times"
    seen: set[_Key] = set()
    attempts: dict[_Key, int] = {}
    for event in events:
        key = _key(event)
        if event.type == recovery.restart:
            seen.clear()
        if key in seen:
            yield f"{key} happened twice without a crash between"
        seen.add(key)
        if event.type == "QuerySent" and event.attempt <= attempts.get(key, 0):
            yield f"{key} was repeated as attempt {event.attempt}"
        attempts[key] = event.attempt
    times = sum(event.type == recovery.restart for event in events)
    if times > recovery.at_most:
        yield f"{recovery.restart} happened {times} times with one crash"


def _key(event: Event) -> _Key:
    if event.type == "QueryResponded" or (event.type == "QueryReconciled" and event.detail == "ANSWERED"):
        return (_ANSWERED, event.subject, "")
    return (event.type, event.subject, event.detail)

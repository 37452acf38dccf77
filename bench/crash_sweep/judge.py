"""Check what a crash may change in a run. The result is a list of findings."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from bench.crash_sweep.ending import Ending, Event
from bench.crash_sweep.scene import RESPONSE_USD
from bench.crash_sweep.steps import AGENT_KILLED, ENGINE, Point
from bench.crash_sweep.transcripts import Played

_ANSWERED = "answered"
_CENT_OF_A_CENT = 1e-4
# The log contains each of these exactly once, however many attempts there were.
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
_OF_COST = frozenset({"AgentSpent", "WorkflowCostCorrected"})


@dataclass(frozen=True, slots=True)
class _Recovery:
    """The events of a recovery. `begins_anew` may occur `at_most` times.

    An answer that was on its way is ignored, with one of the reasons in `late`.
    """

    tells: frozenset[str]
    begins_anew: str
    at_most: int
    late: tuple[str, ...]


_OF_HOST = _Recovery(
    tells=frozenset({"QueryReconciled", "WorkflowDisplaced", "WorkflowPlaced"}),
    begins_anew="WorkflowPlaced",
    at_most=2,
    late=("lost the run",),
)
_OF_AGENT = _Recovery(
    tells=frozenset({"QueryReconciled", "AgentError", "WorkRetried"}),
    begins_anew="WorkRetried",
    at_most=1,
    late=("is over", "awaits no such answer"),
)

_Key = tuple[str, str, str]


def judge(reference: Ending, ending: Ending, point: Point | None = None) -> list[str]:
    """Describe what is wrong with a result, compared with a run without a kill, for one crash point."""
    undisturbed = point is None or point.role == ENGINE
    findings = [
        *_ended(ending),
        *ending.rests,
        *_same(reference, ending),
        *_once_played(reference, ending, again_max=0 if undisturbed else 1),
        *_paid_for(reference, ending, slack_usd=0 if undisturbed else RESPONSE_USD),
    ]
    if point is None or point.role == ENGINE:
        return [*findings, *_undisturbed(reference, ending)]
    recovery = _OF_AGENT if point.kind == AGENT_KILLED else _OF_HOST
    return [*findings, *_recovered(reference, ending, recovery)]


def _ended(ending: Ending) -> Iterator[str]:
    if ending.status != "COMPLETED":
        yield f"the run is {ending.status}: {ending.reason or 'it did not come to its end in time'}"


def _same(reference: Ending, ending: Ending) -> Iterator[str]:
    for name in ("trees", "checkpoints", "reports"):
        expected, found = getattr(reference, name), getattr(ending, name)
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                yield f"{name}: {key} is {found.get(key)!r} instead of {expected.get(key)!r}"


def _once_played(reference: Ending, ending: Ending, *, again_max: int) -> Iterator[str]:
    """Yield the Tasks whose script was not executed step by step, each step once, with one answer."""
    nothing = Played(steps=[], answers=0)
    for task in sorted(reference.played.keys() | ending.played.keys()):
        expected, found = reference.played.get(task, nothing), ending.played.get(task, nothing)
        if (expected.steps, expected.answers) != (found.steps, found.answers):
            yield f"transcripts: of {task} is told {found} instead of {expected}"
    again = sum(task.again for task in ending.played.values())
    if again > again_max:
        yield f"transcripts: {again} steps were done again, and {again_max} may be"


def _paid_for(reference: Ending, ending: Ending, *, slack_usd: float) -> Iterator[str]:
    """Describe wrong costs. A killed process may have to repeat a request whose response it lost."""
    if abs(ending.cost_usd - ending.cost_told_usd) > _CENT_OF_A_CENT:
        yield f"the run has cost ${ending.cost_usd:.4f}, and its sessions tell of ${ending.cost_told_usd:.4f}"
    if abs(ending.cost_usd - reference.cost_usd) > slack_usd + _CENT_OF_A_CENT:
        yield f"the run has cost ${ending.cost_usd:.4f} instead of ${reference.cost_usd:.4f}"


def _undisturbed(reference: Ending, ending: Ending) -> Iterator[str]:
    """Describe any difference in the events, because a killed engine must not change them."""
    for number, (expected, found) in enumerate(itertools.zip_longest(reference.events, ending.events)):
        if expected != found:
            yield f"event {number} is {found} instead of {expected}"
            return


def _recovered(reference: Ending, ending: Ending, recovery: _Recovery) -> Iterator[str]:
    """Describe differences in the events other than repeated attempts."""
    events = [event for event in ending.events if event.type not in _OF_COST]
    counting = [event for event in events if not event.ignored]
    for event in events:
        if event.ignored and not any(reason in event.ignored for reason in recovery.late):
            yield f"an answer was ignored: {event}"
    expected = [_key(event) for event in reference.events if event.type not in _MAY_BE_MISSING]
    keys = [_key(event) for event in counting]
    firsts = [key for key in dict.fromkeys(keys) if key in set(expected)]
    for number, (first, wanted) in enumerate(itertools.zip_longest(firsts, expected)):
        if first != wanted:
            yield f"the new things that happened have {first} instead of {wanted} at {number}"
            break
    yield from _repeats(counting, recovery)
    known = {_key(event) for event in reference.events}
    for key in dict.fromkeys(keys):
        kind, _, detail = key
        if key not in known and kind not in recovery.tells and (kind != "WorkStatusChanged" or detail == "FAILED"):
            yield f"{key} has no place in this run"


def _repeats(events: list[Event], recovery: _Recovery) -> Iterator[str]:
    """Describe events that occur too often: some more than once, others more than once between two recoveries."""
    for key, count in Counter(_key(event) for event in events).items():
        if key[0] in _ONCE and count > 1:
            yield f"{key} happened {count} times"
    seen: set[_Key] = set()
    attempts: dict[_Key, int] = {}
    for event in events:
        key = _key(event)
        if event.type == recovery.begins_anew:
            seen.clear()
        if key in seen:
            yield f"{key} happened twice without a crash between"
        seen.add(key)
        if event.type == "QuerySent" and event.attempt <= attempts.get(key, 0):
            yield f"{key} was repeated as attempt {event.attempt}"
        attempts[key] = event.attempt
    times = sum(event.type == recovery.begins_anew for event in events)
    if times > recovery.at_most:
        yield f"{recovery.begins_anew} happened {times} times with one crash"


def _key(event: Event) -> _Key:
    if event.type == "QueryResponded" or (event.type == "QueryReconciled" and event.detail == "ANSWERED"):
        return (_ANSWERED, event.subject, "")
    return (event.type, event.subject, event.detail)

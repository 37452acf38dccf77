from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.failover.judge import FAILOVER, Failover, Losses, disordered, failovers, losses, stale_settlements
from kingdom.bus import Stream
from kingdom.trial_store import StoredEvent
from kingdom.verify import ViolationKind
from kingdom.verify.evidence import CopyId, Evidence
from kingdom.verify.history import HistoryEntry


def entry(at: int, process: str, what: str, **facts: object) -> HistoryEntry:
    return HistoryEntry(at=at, process=process, what=what, facts=facts)


def claimed(at: int, process: str, token: int, event: str = "e") -> HistoryEntry:
    return entry(at, process, "claimed", stream="s", token=token, events=[[1, event, 1, 0]])


def settled(at: int, process: str, token: int, outcome: str = "done") -> HistoryEntry:
    return entry(at, process, "settled", token=token, began=at - 1, outcomes={"1": outcome})


def stored(token: int) -> StoredEvent:
    return StoredEvent(
        event_id="e", stream="s", partition_key=None, position=1, status="DONE", token=token, error_code=None
    )


KILLED_AT_50 = entry(60, "trial", FAILOVER, killed=50, promoted=60)


def test_the_first_event_after_a_failover_is_one_whose_settlement_began_after_the_promotion() -> None:
    begun_before = entry(61, "a", "settled", token=1, began=59, outcomes={})
    assert list(failovers([claimed(10, "a", 1), KILLED_AT_50, begun_before, settled(70, "a", 1)])) == [
        Failover(killed=50, promoted=60, handled=70)
    ]


def test_a_failover_after_which_nothing_was_handled_is_not_over() -> None:
    assert list(failovers([claimed(10, "a", 1), settled(20, "a", 1), KILLED_AT_50])) == []


def test_an_acknowledged_event_that_is_missing_was_lost_and_one_that_was_settled_twice_was_handled_again() -> None:
    history = [
        entry(1, "p", "published", events=["e", "gone"]),
        claimed(10, "a", 1),
        settled(40, "a", 1),
        KILLED_AT_50,
        claimed(70, "b", 2),
        settled(80, "b", 2),
    ]
    lost = losses(Evidence(history=history, events=[stored(2)]))
    assert lost.events == {"gone"}
    assert lost.handled_again == {("s", "e")}


def _histories() -> Iterator[tuple[str, list[HistoryEntry], bool]]:
    yield "a claim that survived", [claimed(10, "a", 1), KILLED_AT_50, settled(70, "a", 1)], False
    yield (
        "the first settlement was lost",
        [claimed(10, "a", 1), settled(40, "a", 1), KILLED_AT_50, claimed(70, "b", 2), settled(80, "b", 2)],
        False,
    )
    yield (
        "a claim that was lost, and whose token was used again",
        [claimed(40, "a", 1), KILLED_AT_50, claimed(70, "b", 1), settled(80, "a", 1)],
        True,
    )
    yield "a newer claim without any failover", [claimed(10, "a", 1), claimed(20, "b", 2), settled(30, "a", 1)], True


@pytest.mark.parametrize(("history", "stale"), [pytest.param(h, s, id=name) for name, h, s in _histories()])
def test_a_settlement_is_stale_if_another_worker_has_claimed_the_event_on_the_same_server(
    history: list[HistoryEntry], *, stale: bool
) -> None:
    found = list(stale_settlements(Evidence(history=history)))
    assert [finding.kind for finding in found] == [ViolationKind.STALE] * stale


def test_a_reaction_applied_under_one_token_and_done_under_another_is_stale() -> None:
    applied = [{"stream": "s", "event": "e", "token": 1}]
    assert len(list(stale_settlements(Evidence(events=[stored(2)], applied=applied)))) == 1
    assert list(stale_settlements(Evidence(events=[stored(1)], applied=applied))) == []


@pytest.mark.parametrize("way", ["applied", "called"])
@pytest.mark.parametrize(("published_again", "findings"), [(frozenset[CopyId](), 1), (frozenset({("s", "first")}), 0)])
def test_the_order_of_an_event_that_was_lost_and_published_again_is_not_checked(
    way: str, published_again: frozenset[CopyId], findings: int
) -> None:
    events = [
        replace(stored(1), event_id=name, position=n, partition_key="k") for n, name in enumerate(("first", "second"))
    ]
    handled = [{"stream": "s", "event": name, "token": 1, "key": name} for name in ("second", "first")]
    evidence = Evidence(
        streams={"s": Stream(name="s", ordered=True)},
        events=events,
        applied=handled if way == "applied" else [],
        history=[entry(n, "target", "accepted", **facts) for n, facts in enumerate(handled) if way == "called"],
    )
    lost = Losses(
        events=frozenset(), unclosable=frozenset(), published_again=published_again, handled_again=frozenset()
    )
    assert len(list(disordered(evidence, lost))) == findings


@pytest.mark.parametrize("known", [True, False])
def test_an_event_that_is_new_when_it_is_published_again_was_lost(*, known: bool) -> None:
    history = [
        entry(1, "p", "publishing", events=[{"event": "e", "streams": ["s"], "call": ""}]),
        entry(2, "p", "published", events=["e"], again=["e"], duplicates=[["s", "e"]] if known else []),
    ]
    lost = losses(Evidence(history=history, events=[stored(1)]))
    assert lost.published_again == (set() if known else {("s", "e")})


@pytest.mark.parametrize("call_is_there", [True, False])
def test_the_event_that_closes_a_forgotten_call_can_never_be_handled(*, call_is_there: bool) -> None:
    described = [{"event": "call", "call": "c"}, {"event": "closing", "call": "", "closes": "c"}]
    there = ["call", "closing"] if call_is_there else ["closing"]
    evidence = Evidence(
        history=[entry(1, "p", "publishing", events=described)],
        events=[replace(stored(1), event_id=name) for name in there],
    )
    assert losses(evidence).unclosable == (set() if call_is_there else {"closing"})

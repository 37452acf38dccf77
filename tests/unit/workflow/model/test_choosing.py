"""Which host gets a run: the choice is deterministic, a burst is spread, and full or lost hosts get nothing."""

import random
from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kingdom.workflow.model.messages.events import HostLost, HostRegistered
from kingdom.workflow.model.resources.host import Host, HostRenewal, HostStatus, choose_host


def hosts(count: int, slots: int = 20) -> list[Host]:
    return [Host(id=f"host-{number}", epoch=1, slots=slots) for number in range(count)]


def shares(known: list[Host], runs: int) -> Counter[str]:
    """Count how many runs of a burst each host gets."""
    chosen = [choose_host(known, f"wf-{number}") for number in range(runs)]
    return Counter(host.id for host in chosen if host)


@given(seed=st.integers(), workflow_id=st.text(min_size=1))
def test_the_same_hosts_in_any_order_give_the_same_answer(seed: int, workflow_id: str) -> None:
    known = hosts(10)
    shuffled = random.Random(seed).sample(known, len(known))
    assert choose_host(shuffled, workflow_id) == choose_host(known, workflow_id)


def test_a_burst_of_runs_spreads_over_all_hosts() -> None:
    counted = shares(hosts(50), 1000)
    assert len(counted) == 50
    # Each host gets 20 runs on average. Five standard deviations are about 22.
    assert 4 <= min(counted.values()) <= max(counted.values()) <= 42


def test_a_host_with_more_free_slots_gets_more_runs() -> None:
    counted = shares([Host(id="small", epoch=1, slots=10), Host(id="large", epoch=1, slots=30)], 1000)
    assert 650 <= counted["large"] <= 850


def test_slots_that_are_taken_do_not_count() -> None:
    busy, idle = Host(id="busy", epoch=1, slots=40, busy=30), Host(id="idle", epoch=1, slots=10)
    assert 400 <= shares([busy, idle], 1000)["busy"] <= 600


def test_a_full_host_gets_nothing_while_another_has_a_free_slot() -> None:
    full = [msgspec.structs.replace(host, busy=20) for host in hosts(9)]
    assert shares([*full, Host(id="free", epoch=1, slots=1)], 200) == {"free": 200}


def test_a_drained_host_gets_nothing() -> None:
    drained = [msgspec.structs.replace(host, drained=True) for host in hosts(9)]
    assert shares([*drained, Host(id="other", epoch=1, slots=1, busy=1)], 200) == {"other": 200}
    assert choose_host(drained, "wf-1") is None


def test_when_all_are_full_runs_still_find_a_host() -> None:
    full = [msgspec.structs.replace(host, busy=25) for host in hosts(4)]
    counted = shares(full, 400)
    assert sum(counted.values()) == 400
    assert min(counted.values()) > 50


def test_removing_a_host_moves_only_its_own_runs() -> None:
    known = hosts(10)
    fewer = known[1:]
    for number in range(200):
        before, after = choose_host(known, f"wf-{number}"), choose_host(fewer, f"wf-{number}")
        assert before == after or before == known[0]


def test_a_lost_host_gets_nothing_and_without_other_hosts_none_is_chosen() -> None:
    lost, event = hosts(1)[0].as_lost()
    assert (lost.status, event) == (HostStatus.LOST, HostLost(host="host-0", epoch=1))
    assert choose_host([lost], "wf-1") is None
    assert choose_host([], "wf-1") is None
    assert choose_host([lost, Host(id="up", epoch=1, slots=1)], "wf-1") == Host(id="up", epoch=1, slots=1)


def test_the_event_of_a_registration_has_the_slots_of_the_host() -> None:
    assert hosts(1)[0].registered_event() == HostRegistered(host="host-0", epoch=1, slots=20)


def test_a_host_renewal_is_true_only_if_the_lease_was_renewed() -> None:
    assert [renewal for renewal in HostRenewal if renewal] == [HostRenewal.RENEWED]

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import Envelope, RetryPolicy, Stream, Topology
from kingdom.errors import Misconfigured

names = st.text("abc.{}", min_size=1, max_size=8)


def test_an_envelope_goes_to_every_stream_that_subscribes_to_its_type() -> None:
    topology = Topology(
        [
            Stream(name="bills", subscribes=frozenset({"Ordered", "Paid"})),
            Stream(name="stock", subscribes=frozenset({"Ordered"})),
            Stream(name="idle"),
        ]
    )
    assert set(topology.route(Envelope(type="Ordered"))) == {"bills", "stock"}
    assert topology.route(Envelope(type="Paid")) == ("bills",)
    assert topology.route(Envelope(type="Unheard")) == ()


def test_an_envelope_that_names_its_stream_goes_there_only() -> None:
    topology = Topology([Stream(name="a", subscribes=frozenset({"T"})), Stream(name="b")])
    assert topology.route(Envelope(type="T", stream="b")) == ("b",)


def test_an_undeclared_stream_is_refused_and_the_declared_ones_are_named() -> None:
    topology = Topology([Stream(name="a"), Stream(name="b")])
    with pytest.raises(Misconfigured, match=r"'c' is not declared; declared: a, b"):
        topology.route(Envelope(type="T", stream="c"))
    with pytest.raises(Misconfigured, match="none"):
        Topology([]).stream("a")


def test_a_stream_declared_twice_is_refused() -> None:
    with pytest.raises(Misconfigured, match="declared twice"):
        Topology([Stream(name="a"), Stream(name="a", ordered=True)])


def test_a_family_matches_all_its_members() -> None:
    family = Stream(name="soldier.{host}", ordered=True, retry=RetryPolicy(max_attempts=3))
    topology = Topology([family])
    assert topology.stream("soldier.a") == replace(family, name="soldier.a")
    assert topology.stream("soldier.a") is topology.stream("soldier.a")
    assert topology.route(Envelope(type="Stop", stream="soldier.b-7")) == ("soldier.b-7",)


@pytest.mark.parametrize("name", ["soldier", "soldier.", "soldier.a.b", "xsoldier.a", "soldierxa"])
def test_a_name_that_only_resembles_a_family_is_no_member(name: str) -> None:
    with pytest.raises(Misconfigured):
        Topology([Stream(name="soldier.{host}")]).stream(name)


def test_families_that_share_a_prefix_are_distinguished() -> None:
    topology = Topology([Stream(name="soldier.{host}", ordered=True), Stream(name="soldier.{host}.control")])
    assert topology.stream("soldier.a").ordered
    assert not topology.stream("soldier.a.control").ordered


def test_a_single_stream_takes_precedence_over_a_family_that_would_match_it() -> None:
    topology = Topology([Stream(name="soldier.{host}", ordered=True), Stream(name="soldier.chief")])
    assert not topology.stream("soldier.chief").ordered


def test_a_family_cannot_subscribe() -> None:
    with pytest.raises(Misconfigured, match="cannot subscribe"):
        Topology([Stream(name="soldier.{host}", subscribes=frozenset({"T"}))])


def test_the_names_of_a_topology_are_the_declared_ones_without_members_of_families() -> None:
    topology = Topology([Stream(name="a"), Stream(name="soldier.{host}")])
    topology.stream("soldier.x")
    assert topology.names() == ("a", "soldier.{host}")


@given(names, names)
def test_a_name_always_finds_its_own_declaration_or_is_refused(declared: str, asked: str) -> None:
    topology = Topology([Stream(name=declared)])
    assert topology.stream(declared).name == declared
    try:
        assert topology.stream(asked).name == asked
    except Misconfigured:
        assert asked != declared

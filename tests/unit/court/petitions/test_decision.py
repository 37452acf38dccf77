"""A policy decides on petitions: by kind, by target, and by how many there are."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.bodies import AssignmentSubject, read_body
from kingdom.court.petitions.decision import (
    COUNTED,
    GrantDecision,
    Petition,
    PetitionState,
    RefusalDecision,
    decide_petition,
    irreversible_petitions,
    petition_id_of,
)

ORIGIN = AssignmentSubject(repo="acme/rocket", number=7, ticket="QP-1", channel="dev")
AT = datetime(2026, 2, 7, 10, tzinfo=UTC)
ROOT = "task-20260207-001"


def petition(kind: str, *, state: PetitionState = PetitionState.REQUESTED, **raw: Any) -> Petition:
    body = read_body(kind, raw, ORIGIN)
    document = msgspec.to_builtins(body)
    return Petition(
        id=petition_id_of(ROOT, kind, document),
        root=ROOT,
        general="gen-pr",
        workflow_id=f"wf-{ROOT}",
        kind=kind,
        body=document,
        target=body.target,
        foreign=not body.is_about(ORIGIN),
        state=state,
        created_at=AT,
    )


def comment(text: str = "Hm.", **raw: Any) -> Petition:
    return petition("github.comment", body=text, **raw)


def policy(*targets: str, kind: str = "github.comment", at_most: int = 1) -> GeneralPolicy:
    return GeneralPolicy(petitions=(PetitionRule(kind=kind, targets=targets or ("*",), at_most=at_most),))


def reason(decided: GrantDecision | RefusalDecision) -> str:
    assert isinstance(decided, RefusalDecision)
    return decided.reason


def test_a_petition_without_a_rule_is_refused() -> None:
    assert "does not allow github.comment" in reason(decide_petition(comment(), GeneralPolicy(), []))
    assert "does not allow github.comment" in reason(decide_petition(comment(), policy(kind="jira.comment"), []))


def test_an_unknown_kind_is_refused_even_where_a_rule_names_it() -> None:
    strange = msgspec.structs.replace(comment(), kind="github.merge")
    assert "not a kind of petition" in reason(decide_petition(strange, policy(kind="github.merge"), []))


@pytest.mark.parametrize("glob", ["*", "acme/*", "acme/rocket", "acme/rocket#*", "acme/rocket#7", "ACME/Rocket", "*#7"])
def test_a_glob_covers_what_the_assignment_is_about(glob: str) -> None:
    assert decide_petition(comment(), policy(glob), []) == GrantDecision()


@pytest.mark.parametrize("glob", ["acme/rocket#8", "acme/rock", "other/*", "", "acme"])
def test_a_target_outside_of_the_globs_is_refused(glob: str) -> None:
    assert "not an allowed target" in reason(decide_petition(comment(), policy(glob), []))


@pytest.mark.parametrize("glob", ["*", "*/*", "**", "?*", "[a-z]*", "*/other", "a*"])
def test_another_repository_is_not_reached_by_a_wildcard(glob: str) -> None:
    assert "more specific glob" in reason(decide_petition(comment(repo="acme/other", number=1), policy(glob), []))


@pytest.mark.parametrize("glob", ["acme/other", "acme/*", "acme/other#1", "acme/o*#?"])
def test_another_repository_is_reached_by_its_name(glob: str) -> None:
    assert decide_petition(comment(repo="acme/other", number=1), policy(glob), []) == GrantDecision()


@pytest.mark.parametrize(
    ("kind", "raw", "glob", "allowed"),
    [
        ("jira.comment", {"body": "Hm."}, "*", True),
        ("jira.comment", {"key": "QP-2", "body": "Hm."}, "*", False),
        ("jira.comment", {"key": "QP-2", "body": "Hm."}, "QP-*", True),
        ("jira.comment", {"key": "OPS-2", "body": "Hm."}, "QP-*", False),
        ("slack.message", {"text": "Hm."}, "*", True),
        ("slack.message", {"channel": "ops", "text": "Hm."}, "*", False),
        ("slack.message", {"channel": "ops", "text": "Hm."}, "#ops", True),
        ("slack.message", {"channel": "#ops", "text": "Hm."}, "op*", True),
    ],
)
def test_tickets_and_channels_outside_of_the_assignment_must_be_named_too(
    kind: str, raw: dict[str, Any], glob: str, *, allowed: bool
) -> None:
    assert isinstance(decide_petition(petition(kind, **raw), policy(glob, kind=kind), []), GrantDecision) is allowed


def test_an_approval_is_allowed_only_where_a_rule_names_it() -> None:
    approval = petition("github.review", event="APPROVE")
    assert "event APPROVE; use one of: COMMENT, REQUEST_CHANGES" in reason(
        decide_petition(approval, policy(kind="github.review"), [])
    )
    for event in ("COMMENT", "REQUEST_CHANGES"):
        review = petition("github.review", event=event, body="Hm.")
        assert decide_petition(review, policy(kind="github.review"), []) == GrantDecision()
        rule = PetitionRule(kind="github.review", events=("APPROVE",))
        assert f"event {event}; use one of: APPROVE" in reason(
            decide_petition(review, GeneralPolicy(petitions=(rule,)), [])
        )
        assert decide_petition(approval, GeneralPolicy(petitions=(rule,)), []) == GrantDecision()


def test_a_rule_with_review_events_for_another_kind_is_invalid() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"events are allowed for github\.review only"):
        msgspec.convert({"kind": "github.comment", "events": ["APPROVE"]}, PetitionRule)


def test_a_petition_above_the_allowed_number_is_refused() -> None:
    earlier = [msgspec.structs.replace(comment("One."), state=PetitionState.PERFORMED)]
    assert "at most 1" in reason(decide_petition(comment("Two."), policy(), earlier))
    assert decide_petition(comment("Two."), policy(at_most=2), earlier) == GrantDecision()


def test_the_same_text_counts_once_and_other_kinds_not_at_all() -> None:
    same = msgspec.structs.replace(comment(), state=PetitionState.GRANTED)
    other = petition("github.review", event="APPROVE", state=PetitionState.PERFORMED)
    assert decide_petition(comment(), policy(), [same, other]) == GrantDecision()


@pytest.mark.parametrize("state", [PetitionState.REFUSED, PetitionState.FAILED])
def test_a_petition_without_effect_does_not_count(state: PetitionState) -> None:
    assert (
        decide_petition(comment("Two."), policy(), [msgspec.structs.replace(comment("One."), state=state)])
        == GrantDecision()
    )


def test_a_failed_petition_with_an_unclear_effect_counts() -> None:
    given_up = msgspec.structs.replace(comment("One."), state=PetitionState.FAILED, unclear=True)
    assert "at most 1" in reason(decide_petition(comment("Two."), policy(), [given_up]))


globs = st.sampled_from(["*", "acme/*", "acme/rocket", "acme/other#*", "*/other", "zoo/x", "acme/rocket#7"])
rules = st.lists(
    st.builds(PetitionRule, kind=st.just("github.comment"), targets=st.tuples(globs), at_most=st.integers(1, 2)),
    min_size=1,
    max_size=2,
)
comments = st.builds(
    comment,
    text=st.sampled_from("abcdef"),
    repo=st.sampled_from(["", "acme/other", "zoo/x", "zoo/y"]),
    number=st.integers(1, 3),
)
ends = st.sampled_from([PetitionState.GRANTED, PetitionState.PERFORMED, PetitionState.FAILED])


@given(rules=rules, asked=st.lists(st.tuples(comments, ends), min_size=5, max_size=20))
def test_nothing_beyond_the_limit_or_outside_of_the_target_is_granted(
    rules: list[PetitionRule], asked: list[tuple[Petition, PetitionState]]
) -> None:
    allowed, known = GeneralPolicy(petitions=tuple(rules)), dict[str, Petition]()
    for each, end in asked:
        before = known.get(each.id)
        if before and before.state in COUNTED:
            continue
        granted = isinstance(decide_petition(each, allowed, known.values()), GrantDecision)
        known[each.id] = msgspec.structs.replace(each, state=end if granted else PetitionState.REFUSED)
    counted = [each for each in known.values() if each.state in COUNTED]
    assert len(counted) <= sum(rule.at_most for rule in rules)
    for each in counted:
        repo = each.target.partition("#")[0]
        own = repo == "acme/rocket"
        reachable = {"*": own, "*/other": False, "acme/*": repo.startswith("acme/"), "zoo/x": repo == "zoo/x"}
        reachable |= {"acme/rocket": own, "acme/other#*": repo == "acme/other", "acme/rocket#7": False}
        assert any(reachable[glob] for rule in rules for glob in rule.targets)


@given(rule=st.builds(PetitionRule, kind=st.just("github.comment"), at_most=st.integers(1, 4)), count=st.integers(0, 9))
def test_with_one_rule_exactly_as_many_are_granted_as_it_says(rule: PetitionRule, count: int) -> None:
    known: list[Petition] = []
    for number in range(count):
        each = comment(f"Comment {number}.")
        if isinstance(decide_petition(each, GeneralPolicy(petitions=(rule,)), known), GrantDecision):
            known.append(msgspec.structs.replace(each, state=PetitionState.GRANTED))
    assert len(known) == min(count, rule.at_most)


def test_the_order_of_fields_does_not_make_another_petition() -> None:
    assert petition_id_of(ROOT, "x", {"a": 1, "b": {"c": 2, "d": 3}}) == petition_id_of(
        ROOT, "x", {"b": {"d": 3, "c": 2}, "a": 1}
    )
    assert (
        len(
            {
                petition_id_of(ROOT, "x", {}),
                petition_id_of(ROOT, "y", {}),
                petition_id_of("task-2", "x", {}),
                petition_id_of(ROOT, "x", {"a": 1}),
            }
        )
        == 4
    )


def test_a_body_beyond_what_the_rule_allows_is_refused_with_its_size() -> None:
    size = len(msgspec.json.encode(comment("Hm.").body))
    for most, allowed in ((size, True), (size - 1, False)):
        rules = (PetitionRule(kind="github.comment", body_bytes_max=most),)
        decided = decide_petition(comment("Hm."), GeneralPolicy(petitions=rules), [])
        assert isinstance(decided, GrantDecision) is allowed
        assert allowed or f"has {size} bytes, and the policy of gen-pr allows {most}" in reason(decided)


def test_bytes_are_counted_and_not_letters() -> None:
    rules = (PetitionRule(kind="github.comment", body_bytes_max=200),)
    assert decide_petition(comment("a" * 100), GeneralPolicy(petitions=rules), []) == GrantDecision()
    assert "bytes" in reason(decide_petition(comment("\N{SNOWMAN}" * 100), GeneralPolicy(petitions=rules), []))


def test_the_first_rule_that_is_not_used_up_decides() -> None:
    rules = (
        PetitionRule(kind="github.comment", expires_hours=2),
        PetitionRule(kind="github.comment", at_most=2, approval=True),
    )
    first = comment("First.", state=PetitionState.PERFORMED)
    assert decide_petition(comment("First."), GeneralPolicy(petitions=rules), []) == GrantDecision(
        expires_after=timedelta(hours=2)
    )
    assert decide_petition(comment("Second."), GeneralPolicy(petitions=rules), [first]) == GrantDecision(approval=True)


def test_external_effects_of_undone_works_are_listed() -> None:
    def asked(state: PetitionState, *names: str, unclear: bool = False) -> Petition:
        return msgspec.structs.replace(comment(state=state), asked_as=names, unclear=unclear)

    performed = asked(PetitionState.PERFORMED, "p1")
    unclear = asked(PetitionState.FAILED, "p1", unclear=True)
    under_way = asked(PetitionState.GRANTED, "p1")
    inside = [asked(state, "p1") for state in (PetitionState.REFUSED, PetitionState.FAILED, PetitionState.REQUESTED)]
    kept = asked(PetitionState.PERFORMED, "p1", "p2")
    everything = [performed, unclear, under_way, *inside, kept]
    assert irreversible_petitions(everything, ["p2"]) == [performed, unclear, under_way]
    assert irreversible_petitions(everything, ["p1", "p2"]) == []

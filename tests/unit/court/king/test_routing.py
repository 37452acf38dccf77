"""Who gets an event, and why or why not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.documents import Priority
from kingdom.court.king.routing import RoutingDecision, route_event, why_unrouted
from kingdom.court.package_files import SHIPPED, load_packages
from tests.unit.court.king.making import make_event, make_package, wants


def reasons(decision: RoutingDecision) -> dict[str, str]:
    return {considered.rule: considered.reason for considered in decision.considered}


def test_the_first_matching_general_by_order_and_name_gets_an_event() -> None:
    packages = [
        make_package("gen-late", wants("github.*"), order=200),
        make_package("gen-b", wants("github.*")),
        make_package("gen-a", wants("jira.*"), wants("github.pr.*")),
    ]
    decision = route_event(make_event(), packages)
    assert decision.generals == ("gen-a",)
    assert decision.choices[0].rule == "gen-a#2"
    assert reasons(decision) == {
        "gen-a#1": "type is 'github.pr.comment', wanted 'jira.*'",
        "gen-a#2": "matches",
        "gen-b#1": "matches, but gen-a#2 comes first",
        "gen-late#1": "matches, but gen-a#2 comes first",
    }


def test_every_general_with_also_in_its_subscription_gets_the_event_once() -> None:
    packages = [
        make_package("gen-audit", wants("*", also=True), wants("github.*", also=True), order=1),
        make_package("gen-pr", wants("github.*")),
        make_package("gen-stats", wants("*", also=True), order=900),
    ]
    decision = route_event(make_event(), packages)
    assert decision.generals == ("gen-audit", "gen-pr", "gen-stats")
    assert reasons(decision)["gen-audit#2"] == "matches, but its General already gets it"


def test_a_decision_for_no_general_has_reasons_too() -> None:
    decision = route_event(make_event(repo=None), [make_package("gen-pr", wants("*", repos=("acme/*", "other/x")))])
    assert decision.choices == ()
    assert reasons(decision) == {"gen-pr#1": "repo is None, wanted one of 'acme/*', 'other/x'"}


def test_a_general_with_unmet_conditions_is_distinguished_from_one_without_a_subscription() -> None:
    packages = [make_package("gen-pr", wants("github.*", where={"payload.action": "opened"}))]
    assert why_unrouted(make_event(1), packages) == "no rule of a General matches it"
    assert why_unrouted(make_event(1, "jira.ticket.assigned"), packages) == "no General subscribes to it"


def test_names_of_repositories_have_no_case_as_on_github_but_other_texts_do() -> None:
    event = make_event(repo="Acme/App", payload={"reason": "Mention"})
    assert route_event(event, [make_package("gen-pr", wants("*", repos=("acme/*",)))]).choices
    assert not route_event(event, [make_package("gen-pr", wants("*", where={"payload.reason": "mention"}))]).choices


def test_conditions_read_fields_by_their_path_and_show_the_found_value() -> None:
    def decide(where: dict[str, object]) -> str:
        event = make_event(payload={"reason": "mention", "labels": ["bug", "urgent"], "draft": True, "number": 1})
        (considered,) = route_event(event, [make_package("gen-pr", wants("*", where=where))]).considered
        return considered.reason

    assert decide({"payload.reason": "ment*", "priority": ["high", "normal"]}) == "matches"
    assert decide({"payload.labels": "bug"}) == "matches"
    assert decide({"payload.number": 1, "payload.draft": True}) == "matches"
    assert decide({"payload.number": True}) == "payload.number is 1, wanted True"
    assert decide({"payload.draft": 1}) == "payload.draft is True, wanted 1"
    assert decide({"payload.reason": ["assign", "review*"]}) == (
        "payload.reason is 'mention', wanted one of 'assign', 'review*'"
    )
    assert decide({"payload.reason.deeper": "x"}) == "payload.reason.deeper is missing, wanted 'x'"
    assert decide({"payload.number": "1"}) == "payload.number is 1, wanted '1'"


def test_a_subscription_may_change_the_priority_and_the_subject_of_an_event() -> None:
    subscription = wants("*", priority=Priority.HIGH, supersedes="{repo}#{payload.number}", debounce_seconds=30)
    (choice,) = route_event(make_event(7), [make_package("gen-pr", subscription)]).choices
    assert (choice.priority, choice.key, choice.debounce_seconds) == (Priority.HIGH, "acme/app#7", 30)


@pytest.mark.parametrize("name", ["ticket-id", "ticket id", "Ticket_№"])
def test_the_key_of_an_event_has_a_field_with_any_name_that_a_subscription_accepts(name: str) -> None:
    package = make_package("gen-pr", wants("*", supersedes=f"ticket {{payload.{name}}}"))
    keys = [route_event(make_event(payload={name: each}), [package]).choices[0].key for each in ("A-1", "B-2")]
    assert keys == ["ticket A-1", "ticket B-2"]


def test_an_event_without_a_part_of_its_key_has_none() -> None:
    package = make_package("gen-pr", wants("*", supersedes="{repo}#{payload.number}"))
    for event in (make_event(repo=None), make_event(payload={}), make_event(payload={"number": ["a"]})):
        assert route_event(event, [package]).choices[0].key == ""


@given(text=st.text())
def test_text_of_a_payload_is_never_read_as_a_pattern(text: str) -> None:
    event = make_event(payload={"title": text, "secret": "s3cret"})
    keyed = make_package("gen-pr", wants("*", supersedes="{payload.title}"))
    assert route_event(event, [keyed]).choices[0].key == text
    picky = make_package("gen-pr", wants("*", where={"payload.title": "exactly this"}))
    assert bool(route_event(event, [picky]).choices) == (text == "exactly this")


def test_a_reason_shows_no_more_than_the_beginning_of_a_long_text() -> None:
    event = make_event(payload={"title": "x" * 10_000})
    (considered,) = route_event(event, [make_package("gen-pr", wants("*", where={"payload.title": "y"}))]).considered
    assert len(considered.reason) < 200


@pytest.mark.parametrize(
    ("event_type", "text", "generals"),
    [
        ("github.pr.review_requested", "", ("gen-pr", "gen-test")),
        ("test.requested", "", ("gen-test",)),
        ("github.pr.mentioned", "@bot please run the tests", ("gen-test",)),
        ("github.pr.mentioned", "@bot what is this?", ()),
    ],
)
def test_shipped_generals_test_a_pull_request_during_its_review_or_on_request(
    event_type: str, text: str, generals: tuple[str, ...]
) -> None:
    event = make_event(7, event_type, payload={"number": 7, "text": text})
    assert route_event(event, load_packages(SHIPPED).packages).generals == generals

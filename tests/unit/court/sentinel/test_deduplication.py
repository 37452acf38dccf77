"""A webhook and a notification of the same activity make one event, in any order, even if one is repeated or lost."""

import itertools
import random
from dataclasses import dataclass

import pytest

from kingdom.court.sentinel.deduplication import SubjectHistory, record_activity
from kingdom.court.sentinel.github_activity import GitHubActivity
from tests.unit.court.sentinel.activities import SUBJECT, ActivityLog, at, hook, poll

HOURS = 3600


@pytest.mark.parametrize("skew", [0, 1, 20])
def test_a_review_request_is_news_once_whichever_source_reports_it_first(skew: int) -> None:
    asked, noticed = hook("review_requested", 100), poll("review_requested", 100 + skew)
    assert [ActivityLog().record(asked, noticed), ActivityLog().record(noticed, asked)] == [1, 1]


def test_nothing_is_news_twice_in_any_order_with_any_repetition() -> None:
    reported = [hook("review_requested", 100), poll("review_requested", 101)] * 2
    for order in itertools.permutations(reported):
        assert ActivityLog().record(*order) == 1


@pytest.mark.parametrize("way", ["poll", "hook", "both"])
def test_a_review_that_is_requested_again_is_news_again(way: str) -> None:
    first = [hook("review_requested", 0), poll("review_requested", 1)]
    again = [hook("review_requested", 40), poll("review_requested", 41)]
    wanted = {"poll": slice(1, 2), "hook": slice(0, 1), "both": slice(0, 2)}[way]
    activity_log = ActivityLog()
    assert activity_log.record(*first[wanted]) == 1
    assert activity_log.record(*again[wanted]) == 1
    for order in itertools.permutations([*first[wanted], *again[wanted]]):
        assert ActivityLog().record(*order) == 2


def test_a_review_that_is_requested_again_seconds_later_is_news_again() -> None:
    reported = [hook("review_requested", 0), hook("review_requested", 5), poll("review_requested", 5)]
    for order in itertools.permutations(reported):
        assert ActivityLog().record(*order) == 2


@pytest.mark.parametrize("gap", [1, 2, 3])
def test_two_requests_within_seconds_are_news_twice_and_each_webhook_matches_its_own_notification(gap: int) -> None:
    first, again = hook("review_requested", 0), hook("review_requested", gap)
    noticed = [poll("review_requested", 0), poll("review_requested", gap)]
    assert ActivityLog().record(first, again, *noticed) == 2
    assert ActivityLog().record(first, noticed[0], again, noticed[1]) == 2


def test_a_notification_is_news_if_its_webhook_was_lost() -> None:
    activity_log = ActivityLog()
    assert activity_log.record(hook("review_requested", 0), poll("review_requested", 1)) == 1
    assert activity_log.record(poll("review_requested", 2 * HOURS)) == 1


def test_a_webhook_that_matched_a_notification_matches_no_later_one() -> None:
    activity_log = ActivityLog()
    assert activity_log.record(hook("state_change", 0), hook("state_change", 25), poll("author", 26)) == 2
    assert activity_log.record(poll("author", 50)) == 1


def test_a_webhook_that_comes_hours_late_is_not_news_if_the_notification_was() -> None:
    activity_log = ActivityLog()
    activity_log.record(poll("review_requested", 5), poll("review_requested", 5 * HOURS))
    assert activity_log.record(hook("review_requested", 5 * HOURS), hook("review_requested", 4)) == 0


def test_a_comment_whose_notification_still_has_the_reason_of_an_earlier_request_is_news_once() -> None:
    comment, thread = hook("comment", 500, "issues/comments/9"), poll("review_requested", 501, "issues/comments/9")
    for order in itertools.permutations([comment, thread]):
        activity_log = ActivityLog()
        activity_log.record(hook("review_requested", 0), poll("review_requested", 0))
        assert activity_log.record(*order) == 1


def test_a_comment_does_not_hide_the_first_review_request_that_came_with_it() -> None:
    activity_log = ActivityLog()
    assert activity_log.record(hook("comment", 100, "issues/comments/9")) == 1
    assert activity_log.record(poll("review_requested", 101, "issues/comments/9")) == 1
    assert activity_log.record(hook("review_requested", 99)) == 0


def test_a_comment_whose_webhook_was_lost_is_news_though_another_came_seconds_before() -> None:
    activity_log = ActivityLog()
    activity_log.record(hook("comment", 100, "issues/comments/1"))
    assert activity_log.record(poll("comment", 103, "issues/comments/2")) == 1
    assert activity_log.record(hook("comment", 103, "issues/comments/2")) == 0


def test_an_activity_hidden_by_a_newer_one_is_news_when_its_webhook_arrives_late() -> None:
    activity_log = ActivityLog()
    activity_log.record(poll("mention", 90, "issues/comments/2"))
    assert activity_log.record(hook("mention", 40, "issues/comments/1")) == 1
    assert activity_log.record(hook("mention", 90, "issues/comments/2")) == 0


def test_a_notification_about_our_own_activity_is_not_news() -> None:
    ours = hook("state_change", 100)
    history, _ = record_activity(SubjectHistory(subject=SUBJECT), ours, refused=True)
    _, is_news = record_activity(history, poll("author", 101))
    assert not is_news


def test_an_unwanted_comment_matches_a_notification_with_a_persistent_reason_and_no_other() -> None:
    history, _ = record_activity(SubjectHistory(subject=SUBJECT), hook("review_requested", 0))
    history, _ = record_activity(history, hook("comment", 500), refused=True, unwanted=True)
    assert not record_activity(history, poll("review_requested", 501))[1]
    assert record_activity(history, poll("author", 501))[1]


def test_a_refused_notification_does_not_swallow_a_webhook_that_is_wanted() -> None:
    history, _ = record_activity(SubjectHistory(subject=SUBJECT), poll("author", 100), refused=True)
    assert record_activity(history, hook("comment", 100))[1]


def test_the_history_of_a_subject_stays_bounded() -> None:
    activity_log = ActivityLog()
    activity_log.record(*(hook("comment", number, f"issues/comments/{number + 1}") for number in range(1000)))
    assert len(activity_log.history.seen) == 100
    assert activity_log.history.seen[-1].at == at(999)


@dataclass
class _Thread:
    """A notification thread of GitHub: each activity updates its time, and only a request changes its reason."""

    reason: str = ""
    seconds: int = -1
    comment: str = ""

    def touched(self, what: GitHubActivity, seconds: int) -> None:
        asking = what.reason in ("review_requested", "assign", "mention")
        self.reason = what.reason if asking else self.reason or "author"
        self.seconds = seconds
        self.comment = what.comment

    def shown(self) -> GitHubActivity:
        return poll(self.reason, self.seconds, self.comment)


def _history(chance: random.Random, least_gap: int) -> list[GitHubActivity]:
    reported, seconds = [], 0
    for number in range(chance.randint(1, 8)):
        seconds += least_gap + chance.choice([0, 7, 60, 600, 3 * HOURS])
        reason = chance.choice(["review_requested", "review_requested", "comment", "mention", "assign", "state_change"])
        comment = f"issues/comments/{number + 1}" if reason in ("comment", "mention") else ""
        reported.append(hook(reason, seconds, comment))
    return reported


def _arrivals(chance: random.Random, history: list[GitHubActivity], lost: set[str]) -> list[GitHubActivity]:
    """Return webhooks and polls in the order of arrival: polls about every minute, webhooks perhaps late."""
    thread, looked = _Thread(), float(chance.randint(0, 60))
    arrivals: list[tuple[float, GitHubActivity]] = []
    for what in history:
        happened = (what.at - at(0)).total_seconds()
        if thread.reason and looked < happened:
            arrivals += [(looked, thread.shown())] * chance.choice([1, 2])
        looked = max(looked, looked + -(-(happened - looked) // 60) * 60)
        thread.touched(what, int(happened) + chance.choice([0, 0, 1, 2]))
        if what.event.id not in lost:
            late = chance.choice([0, 1, 90, 5 * HOURS])
            arrivals += [(happened + late + chance.random(), what)] * chance.choice([1, 1, 2])
    arrivals.append((looked, thread.shown()))
    return [reported for _, reported in sorted(arrivals, key=lambda each: each[0])]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_or_doubled_by_lost_late_repeated_or_reordered_deliveries(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        history = _history(chance, least_gap=35)
        lost = {what.event.id for what in history if chance.random() < 0.3}
        activity_log = ActivityLog()
        arrivals = _arrivals(chance, history, lost)
        activity_log.record(*arrivals)
        assert len(activity_log.news) <= len(history), (arrivals, activity_log.news)
        for what in history:
            reported = [news for news in activity_log.news if news.event.id == what.event.id or news.at >= what.at]
            assert reported, (what, arrivals)
        if not lost:
            assert len(activity_log.news) == len(history), (arrivals, activity_log.news)


@pytest.mark.parametrize("seed", range(30))
def test_in_a_burst_nothing_is_doubled_and_no_webhook_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        history = _history(chance, least_gap=1)
        activity_log = ActivityLog()
        arrivals = _arrivals(chance, history, set())
        activity_log.record(*arrivals)
        assert len(activity_log.news) == len(history), (arrivals, activity_log.news)

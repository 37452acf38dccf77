"""The history of one GitHub issue or pull request. Match webhooks (`hook`) with notifications (`poll`).

A webhook describes one activity. A notification describes a thread: it has the time of the last activity, and does not
show earlier activities. The reason of a notification persists: after a review request, every later comment also arrives
as `review_requested`. All times are set by GitHub, so a late delivery does not matter.
"""

from datetime import datetime, timedelta

import msgspec

from kingdom.court.sentinel.github_activity import ActivitySource, GitHubActivity

# The time of a notification is at most this much later or earlier than the time of its activity.
LATE_MAX = timedelta(seconds=30)
EARLY_MAX = timedelta(seconds=2)
_ITEMS_MAX = 100
_MENTIONS = frozenset({"mention", "team_mention"})
# These reasons describe an activity, unless they persist from an earlier activity. Other reasons only say why we are
# notified.
_SPECIFIC_REASONS = _MENTIONS | {"review_requested", "assign", "approval_requested", "invitation", "security_alert"}


class SeenItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One webhook or notification about an activity. `at` is the time of the activity.

    `matched_at` is the time of the other item, webhook or notification, about the same activity. In a notification that
    needs no other item, it is the notification's own time. For a notification, `after` is the time of the previous
    notification, and `vague` means that the reason does not describe the activity. A webhook is `unwanted` if it was
    refused only because of its reason.
    """

    id: str
    type: str
    source: ActivitySource
    at: datetime
    comment: str = ""
    after: datetime | None = None
    vague: bool = False
    matched_at: datetime | None = None
    unwanted: bool = False


class SubjectHistory(msgspec.Struct, frozen=True, kw_only=True, rename={"subject": "place", "seen": "told"}):
    """The newest items received about one issue or pull request, the oldest of them first."""

    subject: str
    seen: tuple[SeenItem, ...] = ()

    def knows(self, event_id: str) -> bool:
        """Return whether this exact notification or webhook was received before."""
        return any(item.id == event_id for item in self.seen)


def record_activity(
    history: SubjectHistory, activity: GitHubActivity, *, refused: bool = False, unwanted: bool = False
) -> tuple[SubjectHistory, bool]:
    """Return the history with one more activity, and whether the activity is new.

    A `refused` activity creates no event. A notification that matches a refused webhook creates no event either. An
    `unwanted` webhook only matches a notification whose reason persists from an earlier activity.
    """
    if history.knows(activity.event.id):
        return history, False
    item = SeenItem(
        id=activity.event.id,
        type=activity.event.type,
        source=activity.source,
        at=activity.at,
        comment=activity.comment,
        unwanted=unwanted,
    )
    if activity.source is ActivitySource.HOOK:
        return _record_hook(history, item)
    return _record_poll(history, item, activity.reason, refused=refused)


def _record_hook(history: SubjectHistory, hook: SeenItem) -> tuple[SubjectHistory, bool]:
    polls = [item for item in history.seen if item.source is ActivitySource.POLL and item.matched_at is None]
    covering = [poll for poll in polls if _covers(poll, hook)]
    if not covering:
        return _with_items(history, hook), True
    same = min(covering, key=lambda poll: (poll.type != hook.type, abs(poll.at - hook.at)))
    return _with_items(history, _as_matched(hook, same), _as_matched(same, hook)), False


def _covers(poll: SeenItem, hook: SeenItem) -> bool:
    """Return whether a notification and a webhook that arrived later are about the same activity."""
    if poll.comment and (poll.vague or hook.comment):
        return poll.comment == hook.comment
    if poll.vague:
        return not hook.comment and _is_near(poll, hook)
    is_between = hook.at <= poll.at + EARLY_MAX and (poll.after is None or hook.at > poll.after - EARLY_MAX)
    return poll.type == hook.type and is_between


def _record_poll(history: SubjectHistory, poll: SeenItem, reason: str, *, refused: bool) -> tuple[SubjectHistory, bool]:
    is_specific = reason in _SPECIFIC_REASONS
    hooks = [item for item in history.seen if item.source is ActivitySource.HOOK and (is_specific or not item.unwanted)]
    is_new_reason = is_specific and not any(
        item.type == poll.type and item.at <= poll.at + EARLY_MAX for item in history.seen
    )
    if poll.comment:
        same = [hook for hook in hooks if hook.comment == poll.comment]
    else:
        same = [hook for hook in hooks if _is_unmatched(hook, poll) and _is_near(poll, hook)]
    if same and (not is_new_reason or (poll.comment and reason in _MENTIONS)):
        # The notification covers all activities until `until`, so these webhooks must not match a later notification.
        # This includes a webhook that is slightly later than the notification only if no other webhook is nearer.
        until = max(poll.at, min(same, key=lambda hook: abs(poll.at - hook.at)).at)
        covered = [_as_matched(hook, poll) for hook in hooks if hook.at <= until]
        return _with_items(history, _as_matched(poll, poll), *covered), False
    before = [item.at for item in history.seen if item.source is ActivitySource.POLL and item.at < poll.at]
    entry = msgspec.structs.replace(
        poll,
        after=max(before, default=None),
        vague=not is_new_reason,
        matched_at=poll.at if refused else None,
    )
    return _with_items(history, entry), True


def _is_near(poll: SeenItem, hook: SeenItem) -> bool:
    return -EARLY_MAX <= poll.at - hook.at <= LATE_MAX


def _is_unmatched(hook: SeenItem, poll: SeenItem) -> bool:
    return hook.matched_at is None or poll.at < hook.matched_at


def _as_matched(item: SeenItem, by: SeenItem) -> SeenItem:
    return msgspec.structs.replace(item, matched_at=max(by.at, item.matched_at or by.at))


def _with_items(history: SubjectHistory, *changed: SeenItem) -> SubjectHistory:
    every = {item.id: item for item in (*history.seen, *changed)}
    return SubjectHistory(
        subject=history.subject, seen=tuple(sorted(every.values(), key=lambda item: item.at)[-_ITEMS_MAX:])
    )

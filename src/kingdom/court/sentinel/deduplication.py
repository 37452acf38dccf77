"""The history of one GitHub issue or pull request, and the rule that matches webhooks with notifications. Pure.

A webhook describes one activity. A notification describes a thread: it has the time of the last activity and hides
earlier ones. Its reason persists: after a review request, every later comment also arrives as `review_requested`. All
times are GitHub's own, so late arrival does not matter.
"""

from datetime import datetime, timedelta

import msgspec

from kingdom.court.sentinel.github_activity import ActivitySource, GitHubActivity

# A notification's time is about that of the activity, and never noticeably earlier.
WITHIN = timedelta(seconds=30)
EARLY = timedelta(seconds=2)
_KEPT = 100
_MENTIONS = frozenset({"mention", "team_mention"})
# These reasons describe the activity, unless they persist from an earlier one. Others only say why we are notified.
_SPECIFIC_REASONS = _MENTIONS | {"review_requested", "assign", "approval_requested", "invitation", "security_alert"}


class SeenItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One webhook or notification. `matched_at` is the time of its counterpart, or its own time if it needs none.

    For a notification, `after` is the time of the previous one, and `vague` means that its reason does not describe the
    activity. A webhook is `unwanted` if only its reason was filtered.
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
    """Everything received about one issue or pull request, the oldest first."""

    subject: str
    seen: tuple[SeenItem, ...] = ()

    def knows(self, event_id: str) -> bool:
        """Return whether this exact notification or webhook was received before."""
        return any(item.id == event_id for item in self.seen)


def record_activity(
    history: SubjectHistory, activity: GitHubActivity, *, refused: bool = False, unwanted: bool = False
) -> tuple[SubjectHistory, bool]:
    """Return the history with one more activity, and whether the activity is new.

    A `refused` activity becomes no event, but still matches its counterpart, which then becomes none either. If it is
    `unwanted`, it only matches a notification whose reason persists from earlier.
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
        return _with(history, hook), True
    same = min(covering, key=lambda poll: (poll.type != hook.type, abs(poll.at - hook.at)))
    return _with(history, _matched(hook, same), _matched(same, hook)), False


def _covers(poll: SeenItem, hook: SeenItem) -> bool:
    """Return whether a later webhook describes the activity of a notification."""
    if poll.comment and (poll.vague or hook.comment):
        return poll.comment == hook.comment
    if poll.vague:
        return not hook.comment and _is_near(poll, hook)
    is_between = hook.at <= poll.at + EARLY and (poll.after is None or hook.at > poll.after - EARLY)
    return poll.type == hook.type and is_between


def _record_poll(history: SubjectHistory, poll: SeenItem, reason: str, *, refused: bool) -> tuple[SubjectHistory, bool]:
    is_specific = reason in _SPECIFIC_REASONS
    hooks = [item for item in history.seen if item.source is ActivitySource.HOOK and (is_specific or not item.unwanted)]
    is_new_reason = is_specific and not any(
        item.type == poll.type and item.at <= poll.at + EARLY for item in history.seen
    )
    if poll.comment:
        same = [hook for hook in hooks if hook.comment == poll.comment]
    else:
        same = [hook for hook in hooks if _is_free(hook, poll) and _is_near(poll, hook)]
    if same and (not is_new_reason or (poll.comment and reason in _MENTIONS)):
        # The notification covers all activity until then, and none of these webhooks may match a later notification.
        # A webhook a moment later is a different activity, unless none is nearer.
        until = max(poll.at, min(same, key=lambda hook: abs(poll.at - hook.at)).at)
        over = [_matched(hook, poll) for hook in hooks if hook.at <= until]
        return _with(history, _matched(poll, poll), *over), False
    before = [item.at for item in history.seen if item.source is ActivitySource.POLL and item.at < poll.at]
    entry = msgspec.structs.replace(
        poll,
        after=max(before, default=None),
        vague=not is_new_reason,
        matched_at=poll.at if refused else None,
    )
    return _with(history, entry), True


def _is_near(poll: SeenItem, hook: SeenItem) -> bool:
    return -EARLY <= poll.at - hook.at <= WITHIN


def _is_free(hook: SeenItem, poll: SeenItem) -> bool:
    return hook.matched_at is None or poll.at < hook.matched_at


def _matched(item: SeenItem, by: SeenItem) -> SeenItem:
    return msgspec.structs.replace(item, matched_at=max(by.at, item.matched_at or by.at))


def _with(history: SubjectHistory, *changed: SeenItem) -> SubjectHistory:
    every = {item.id: item for item in (*history.seen, *changed)}
    return SubjectHistory(
        subject=history.subject, seen=tuple(sorted(every.values(), key=lambda item: item.at)[-_KEPT:])
    )

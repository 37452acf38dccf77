"""What we history of one place of GitHub, and the rule by which a webhook and a notification are the same. Pure.

A webhook tells of one activity and what it is. A notification is a thread: it tells that the last activity was at
its time, hides those before, and gives a reason that stays from then on: after a review request every comment comes as
`review_requested` too. Times are GitHub's own, so how late either arrives does not matter.
"""

from datetime import datetime, timedelta

import msgspec

from kingdom.court.sentinel.github_activity import ActivitySource, GitHubActivity

# A thread is touched at about the time of what happened, and never noticeably before.
WITHIN = timedelta(seconds=30)
EARLY = timedelta(seconds=2)
_KEPT = 100
_MENTIONS = frozenset({"mention", "team_mention"})
# These tell what happened, unless they stand there since earlier; all others tell only why we are item.
_SPECIFIC_REASONS = _MENTIONS | {"review_requested", "assign", "approval_requested", "invitation", "security_alert"}


class SeenItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that we were item; `matched_at` is the time of its counterpart once that came, or where it needs none.

    Of a notification, `after` is the time of the one before, and `vague` says that its reason does not tell what
    happened. A webhook is `unwanted` where only its reason kept it from becoming an event.
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
    """Everything that we were item of one place, oldest first."""

    subject: str
    seen: tuple[SeenItem, ...] = ()

    def knows(self, event_id: str) -> bool:
        """Tell whether this very notification or webhook came before."""
        return any(item.id == event_id for item in self.seen)


def record_activity(
    history: SubjectHistory, activity: GitHubActivity, *, refused: bool = False, unwanted: bool = False
) -> tuple[SubjectHistory, bool]:
    """Return what we know with one thing more, and whether that is news.

    What is `refused` becomes no event: it still explains its counterpart, which then becomes none either. Where it is
    refused as `unwanted` it explains only what would come under a reason that has stayed from earlier.
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
    """Tell whether the event that was made of a notification is what a webhook tells later."""
    if poll.comment and (poll.vague or hook.comment):
        return poll.comment == hook.comment
    if poll.vague:
        return not hook.comment and _is_near(poll, hook)
    is_between = hook.at <= poll.at + EARLY and (poll.after is None or hook.at > poll.after - EARLY)
    return poll.type == hook.type and is_between


def _record_poll(history: SubjectHistory, poll: SeenItem, reason: str, *, refused: bool) -> tuple[SubjectHistory, bool]:
    tells = reason in _SPECIFIC_REASONS
    hooks = [item for item in history.seen if item.source is ActivitySource.HOOK and (tells or not item.unwanted)]
    is_new_reason = tells and not any(item.type == poll.type and item.at <= poll.at + EARLY for item in history.seen)
    if poll.comment:
        same = [hook for hook in hooks if hook.comment == poll.comment]
    else:
        same = [hook for hook in hooks if _is_free(hook, poll) and _is_near(poll, hook)]
    if same and (not is_new_reason or (poll.comment and reason in _MENTIONS)):
        # It stands for all that happened until then, and none of these may explain a later one; what happened a moment
        # later is another one, unless nothing is nearer.
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

"""What we heard of one place of GitHub, and the rule by which a webhook and a notification are the same. Pure.

A webhook tells of one happening and what it is. A notification is a thread: it tells that the last happening was at
its time, hides those before, and gives a reason that stays from then on: after a review request every comment comes as
`review_requested` too. Times are GitHub's own, so how late either arrives does not matter.
"""

from datetime import datetime, timedelta

import msgspec

from kingdom.court.sentinel.happening import Happening, Source

# A thread is touched at about the time of what happened, and never noticeably before.
WITHIN = timedelta(seconds=30)
EARLY = timedelta(seconds=2)
_KEPT = 100
_SAID = frozenset({"mention", "team_mention"})
# These tell what happened, unless they stand there since earlier; all others tell only why we are told.
_TELLING = _SAID | {"review_requested", "assign", "approval_requested", "invitation", "security_alert"}


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that we were told; `matched_at` is the time of its counterpart once that came, or where it needs none.

    Of a notification, `after` is the time of the one before, and `vague` says that its reason does not tell what
    happened. A webhook is `unwanted` where only its reason kept it from becoming an event.
    """

    id: str
    type: str
    source: Source
    at: datetime
    comment: str = ""
    after: datetime | None = None
    vague: bool = False
    matched_at: datetime | None = None
    unwanted: bool = False


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that we were told of one place, oldest first."""

    place: str
    told: tuple[Told, ...] = ()

    def knows(self, event_id: str) -> bool:
        """Tell whether this very notification or webhook came before."""
        return any(told.id == event_id for told in self.told)


def hear(heard: Heard, happening: Happening, *, refused: bool = False, unwanted: bool = False) -> tuple[Heard, bool]:
    """Return what we know with one thing more, and whether that is news.

    What is `refused` becomes no event: it still explains its counterpart, which then becomes none either. Where it is
    refused as `unwanted` it explains only what would come under a reason that has stayed from earlier.
    """
    if heard.knows(happening.event.id):
        return heard, False
    told = Told(
        id=happening.event.id,
        type=happening.event.type,
        source=happening.source,
        at=happening.at,
        comment=happening.comment,
        unwanted=unwanted,
    )
    if happening.source is Source.HOOK:
        return _hear_hook(heard, told)
    return _hear_poll(heard, told, happening.reason, refused=refused)


def _hear_hook(heard: Heard, hook: Told) -> tuple[Heard, bool]:
    polls = [told for told in heard.told if told.source is Source.POLL and told.matched_at is None]
    covering = [poll for poll in polls if _covers(poll, hook)]
    if not covering:
        return _with(heard, hook), True
    same = min(covering, key=lambda poll: (poll.type != hook.type, abs(poll.at - hook.at)))
    return _with(heard, _matched(hook, same), _matched(same, hook)), False


def _covers(poll: Told, hook: Told) -> bool:
    """Tell whether the event that was made of a notification is what a webhook tells later."""
    if poll.comment and (poll.vague or hook.comment):
        return poll.comment == hook.comment
    if poll.vague:
        return not hook.comment and _is_near(poll, hook)
    is_between = hook.at <= poll.at + EARLY and (poll.after is None or hook.at > poll.after - EARLY)
    return poll.type == hook.type and is_between


def _hear_poll(heard: Heard, poll: Told, reason: str, *, refused: bool) -> tuple[Heard, bool]:
    tells = reason in _TELLING
    hooks = [told for told in heard.told if told.source is Source.HOOK and (tells or not told.unwanted)]
    is_new_reason = tells and not any(told.type == poll.type and told.at <= poll.at + EARLY for told in heard.told)
    if poll.comment:
        same = [hook for hook in hooks if hook.comment == poll.comment]
    else:
        same = [hook for hook in hooks if _is_free(hook, poll) and _is_near(poll, hook)]
    if same and (not is_new_reason or (poll.comment and reason in _SAID)):
        # It stands for all that happened until then, and none of these may explain a later one; what happened a moment
        # later is another one, unless nothing is nearer.
        until = max(poll.at, min(same, key=lambda hook: abs(poll.at - hook.at)).at)
        over = [_matched(hook, poll) for hook in hooks if hook.at <= until]
        return _with(heard, _matched(poll, poll), *over), False
    before = [told.at for told in heard.told if told.source is Source.POLL and told.at < poll.at]
    entry = msgspec.structs.replace(
        poll,
        after=max(before, default=None),
        vague=not is_new_reason,
        matched_at=poll.at if refused else None,
    )
    return _with(heard, entry), True


def _is_near(poll: Told, hook: Told) -> bool:
    return -EARLY <= poll.at - hook.at <= WITHIN


def _is_free(hook: Told, poll: Told) -> bool:
    return hook.matched_at is None or poll.at < hook.matched_at


def _matched(told: Told, by: Told) -> Told:
    return msgspec.structs.replace(told, matched_at=max(by.at, told.matched_at or by.at))


def _with(heard: Heard, *changed: Told) -> Heard:
    every = {told.id: told for told in (*heard.told, *changed)}
    return Heard(place=heard.place, told=tuple(sorted(every.values(), key=lambda told: told.at)[-_KEPT:]))

"""A timeline in words: its subject, its result, and its durations."""

from datetime import datetime

from kingdom.court.explain.timeline import Moment, Strand, Timeline
from kingdom.court.followups.summary import FollowupSummary, describe_followup, describe_rounds
from kingdom.text import format_duration, printable, sentence, with_noun, with_reason


def headline(timeline: Timeline) -> str:
    """Return the subject of a timeline as one line."""
    event = timeline.event
    if event is None:
        return printable(timeline.about)
    where = f" in {event.repo}" if event.repo else ""
    subject = f": {event.subject}" if event.subject else ""
    return printable(f"{timeline.about}, {event.type}{where}{subject}")


def outcome(timeline: Timeline, now: datetime) -> str:
    """Return how a timeline ended, or its current state, as a sentence."""
    seconds = timeline.seconds
    if seconds is None and timeline.begun_at:
        took = f"for {format_duration(max((now - timeline.begun_at).total_seconds(), 0.0))} so far"
    else:
        took = f"after {format_duration(seconds)}" if seconds is not None else "for an unknown time"
    parts = [f"{timeline.status} {took}", money(timeline.cost_usd)]
    if timeline.crashes:
        parts.append(with_noun(timeline.crashes, "crash", "crashes"))
    if timeline.retries:
        parts.append(with_noun(timeline.retries, "retry", "retries"))
    return f"{', '.join(parts)}."


def result_of(strand: Strand) -> str:
    """Return the result of a strand, which is one assignment or run of the timeline, as a sentence."""
    who = f" by {strand.general}" if strand.general else ""
    text = with_reason(f"{strand.id}{who} is {strand.status}", strand.summary or strand.reason)
    return printable(sentence(text))


def state_of_followup(followup: FollowupSummary) -> str:
    """Return in two sentences whether a pull request is followed, what waits or why it ended, and its rounds."""
    state = "is not followed any more" if followup.ended_at else "is followed until it is merged"
    limit = f" of {money(followup.budget_usd)}" if followup.budget_usd is not None else ""
    rounds = f"Rounds: {describe_rounds(followup) or 'none'}, for {money(followup.cost_usd)}{limit}."
    return printable(f"{sentence(with_reason(f'{followup.id} {state}', describe_followup(followup)))} {rounds}")


def offset(timeline: Timeline, moment: Moment) -> str:
    """Return how long after the beginning of the timeline a moment was."""
    return f"+{format_duration(max((moment.at - timeline.begun_at).total_seconds(), 0.0))}" if timeline.begun_at else ""


def money(amount: float | None) -> str:
    """Format an amount of money, or nothing for None."""
    if amount is None:
        return ""
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"  # noqa: PLR2004 - a cent

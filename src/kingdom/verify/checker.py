"""The checker: from the history and the final store to what went wrong. Pure."""

from kingdom.verify.checks import delivery, effects, ending, keeping, operator, order, ownership, recovery
from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation

_CHECKS = (
    delivery.lost,
    delivery.torn,
    delivery.delivered_rolled_back,
    delivery.doubled,
    delivery.early,
    delivery.twice,
    delivery.contests,
    effects.repeated,
    effects.sent_unsure,
    effects.unclosed,
    order.disordered,
    order.overtaken,
    ownership.overlapped,
    ownership.stale,
    ownership.taken,
    recovery.slow,
    ending.ended_wrong,
    operator.ended_for_good,
    operator.paused,
    operator.not_redriven,
    keeping.removed,
    keeping.misread,
    ending.broken,
)


def check(evidence: Evidence) -> list[Violation]:
    """Return everything that went wrong."""
    return [finding for each in _CHECKS for finding in each(evidence)]

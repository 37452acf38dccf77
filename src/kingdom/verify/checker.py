"""The checker: find violations in the history and the final store."""

from kingdom.verify.checks import delivery, effects, ending, keeping, operator, order, ownership, recovery
from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation

_CHECKS = (
    delivery.lost_events,
    delivery.torn_transactions,
    delivery.delivered_after_rollback,
    delivery.duplicate_ids,
    delivery.early_deliveries,
    delivery.repeated_reactions,
    delivery.keys_without_one_winner,
    effects.repeated_calls,
    effects.unsafe_resends,
    effects.calls_not_closed_once,
    order.order_violations,
    order.overtaken_dead_events,
    ownership.overlapping_handlers,
    ownership.stale_settlements,
    ownership.live_leases_lost,
    recovery.slow_recoveries,
    ending.events_in_wrong_status,
    operator.run_after_end,
    operator.claims_while_paused,
    operator.redriven_but_not_run,
    keeping.removed_records,
    keeping.log_reading_errors,
    ending.broken_invariants,
    ending.unexpected_exits,
)


def check(evidence: Evidence) -> list[Violation]:
    """Return all violations of the promises of the bus."""
    return [violation for each in _CHECKS for violation in each(evidence)]

"""Let a test decide when leases are renewed and given up, so that a slow machine has no influence."""

import math

import pytest

from tests.integration.running import RENEWED_EARLY


@pytest.fixture
def renewed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew leases soon after their last renewal, so that a test with long leases does not wait."""
    monkeypatch.setattr("kingdom.bus.worker.keeper.HeldLease.due_at", RENEWED_EARLY)


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Make a worker count a lease as lost if and only if its token is in this set."""
    tokens = set[int]()
    lost_at = property(lambda lease: 0.0 if lease.token in tokens else math.inf)
    monkeypatch.setattr("kingdom.bus.worker.keeper.HeldLease.lost_at", lost_at)
    # With this share the worker checks its leases often, even if they are long.
    monkeypatch.setattr("kingdom.bus.worker.worker.MARGIN_SHARE", 0.0)
    return tokens

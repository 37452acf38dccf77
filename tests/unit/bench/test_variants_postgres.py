"""The broken variants of the bus on PostgreSQL still find what they break, although the queries change."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.chaos import variants_postgres
from bench.chaos.variants_postgres import blame_batch, no_fence, no_pause, split_keys
from kingdom.backends.postgres.queries import load_queries


@pytest.mark.parametrize("variant", [no_fence, blame_batch, no_pause, split_keys])
def test_a_variant_matches_every_query_that_it_breaks(
    variant: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: dict[str, Any] = {}
    monkeypatch.setattr(variants_postgres, "replace", lambda _owner, name, value: replaced.update({name: value}))
    for name in ("rely_on_leases", "forget_renewals", "split_keys_anywhere"):
        monkeypatch.setattr(variants_postgres, name, lambda *_: None)
    variant()
    assert replaced["load_queries"]("kingdom") != load_queries("kingdom")

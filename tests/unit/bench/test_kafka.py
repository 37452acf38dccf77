from dataclasses import replace

import pytest

from bench.kafka.figures import Figures, Turn

STORED = Turn(
    publish_us=50,
    relay_us=0,
    drain_us=150,
    relay_client_us=0,
    drain_client_us=100,
    relay_rate=0,
    record_rate=1000,
)
CARRIED = replace(STORED, publish_us=30, relay_us=10, drain_us=30, record_rate=2000)
GOOD = Figures(
    ordered=[STORED],
    kafka=[CARRIED],
    buffers_by_retained={10_000: 40, 1_000_000: 44},
    buffers_by_pinned_ticks={100: 40, 500: 41},
    latencies_ms=[40.0, 50.0, 900.0],
)


def broken(figures: Figures) -> list[str]:
    bounds = [*figures.count_bounds(), *figures.time_bounds()]
    return [bound.name for bound in bounds if not bound.holds]


def test_all_bounds_hold_for_good_figures() -> None:
    assert broken(GOOD) == []
    assert GOOD.cost_share == 0.2
    assert GOOD.rate_ratio == 2.0
    assert GOOD.p50_ms == 50.0


@pytest.mark.parametrize(
    ("figures", "word"),
    [
        (replace(GOOD, kafka=[replace(CARRIED, relay_us=100)]), "share"),
        (replace(GOOD, kafka=[replace(CARRIED, record_rate=1400)]), "multiple"),
        (replace(GOOD, latencies_ms=[160.0]), "p50"),
        (replace(GOOD, buffers_by_retained={10_000: 40, 1_000_000: 70}), "retained"),
        (replace(GOOD, buffers_by_pinned_ticks={100: 40, 500: 70}), "pinned"),
    ],
)
def test_a_bad_figure_breaks_its_bound(figures: Figures, word: str) -> None:
    (name,) = broken(figures)
    assert word in name

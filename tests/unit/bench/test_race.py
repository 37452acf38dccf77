from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.race import rounds
from bench.race.figures import (
    BARE,
    DRAIN,
    DRAIN_2,
    KINGDOM,
    LATENCY,
    ONE,
    ORDERED,
    RECORD,
    SYNCED_NATS,
    Cell,
    Figures,
    Sample,
    percentile,
)
from bench.race.report import PAGE_BEGINS, PAGE_ENDS, draw_chart, fill_page
from bench.race.rounds import Race
from bench.race.sides import SIDES


def sample(rate: float = 1000, cost: float = 100, p50: float | None = None) -> Sample:
    return Sample(rate=rate, client_us=cost / 4, server_us=cost * 3 / 4, p50_ms=p50, p99_ms=p50)


def race(*cells: tuple[str, str, Sample], demand: float = 1.0) -> Figures:
    figures = Figures(demand)
    for side, column, taken in cells:
        figures.note(side, column, taken)
    return figures


def test_a_limit_scales_with_the_time_of_the_bare_loop() -> None:
    figures = race((BARE, DRAIN, sample(cost=100)), (KINGDOM, DRAIN, sample(cost=125)))
    (bound,) = figures.bounds()
    assert (bound.value, bound.limit, bound.holds) == (1.25, 1.25, True)
    assert figures.complaints() == []
    assert figures.to_json()["holds"]


def test_a_side_that_costs_more_is_named_with_its_figure() -> None:
    figures = race((BARE, ONE, sample(cost=100)), (ORDERED, ONE, sample(cost=310)))
    assert figures.complaints() == [
        "kingdom-ordered, publish one, processor time as a multiple of bare: 3.10, at most 3.00"
    ]
    assert not figures.to_json()["holds"]


def test_a_higher_demand_makes_a_limit_stricter() -> None:
    cells = ((BARE, RECORD, sample(cost=100)), (KINGDOM, RECORD, sample(cost=130)))
    assert race(*cells).complaints() == []
    assert len(race(*cells, demand=1.1).complaints()) == 1


def test_latency_is_bounded_by_its_median_and_not_by_its_rate() -> None:
    cells = ((BARE, LATENCY, sample(p50=2)), (KINGDOM, LATENCY, sample(rate=1, p50=3.2)))
    assert race(*cells).complaints() == []
    assert len(race(*cells[:1], (KINGDOM, LATENCY, sample(p50=3.3))).complaints()) == 1


def test_every_column_of_a_peer_on_postgresql_must_be_slower() -> None:
    figures = race(
        (KINGDOM, DRAIN, sample(rate=900)),
        (KINGDOM, ONE, sample(rate=900)),
        ("pgmq", DRAIN, sample(rate=1000)),
        ("pgmq", ONE, sample(rate=800)),
    )
    assert figures.complaints() == ["kingdom, drain, rate as a multiple of pgmq: 0.90, at least 1.00"]


def test_a_peer_with_a_shorter_latency_is_ahead() -> None:
    figures = race((KINGDOM, LATENCY, sample(p50=4)), ("pgqueuer", LATENCY, sample(p50=3)))
    assert figures.complaints() == ["kingdom, latency, p50 of pgqueuer as a multiple of kingdom: 0.75, at least 1.00"]


def test_nats_has_a_bound_only_for_a_synced_drain_with_two_workers() -> None:
    fast, slow = sample(rate=1000), sample(rate=500)
    for side, column, bounds in (
        (SYNCED_NATS, DRAIN_2, 1),
        (SYNCED_NATS, DRAIN, 0),
        ("nats", DRAIN_2, 0),
    ):
        assert len(race((KINGDOM, column, slow), (side, column, fast)).bounds()) == bounds


def test_a_peer_that_is_not_installed_has_a_reason_and_no_limit() -> None:
    figures = race((BARE, DRAIN, sample()), (KINGDOM, DRAIN, sample()), ("pgmq", DRAIN, sample(rate=9000)))
    figures.exclude("pgmq", "it cannot be installed")
    assert figures.complaints() == []
    assert figures.sides() == [BARE, KINGDOM]
    assert figures.to_json()["notHere"] == {"pgmq": "it cannot be installed"}


def test_a_race_without_any_limit_proves_nothing() -> None:
    assert race((KINGDOM, DRAIN, sample())).complaints() == ["nothing was measured that has a bound"]
    assert race((BARE, DRAIN, sample()), (ORDERED, LATENCY, sample(p50=1))).complaints() != []


def test_goals_of_rates_are_reported_and_not_required() -> None:
    figures = race((BARE, DRAIN, sample(rate=1000)), (KINGDOM, DRAIN, sample(rate=100)))
    (goal,) = figures.goals()
    assert (goal.value, goal.limit, goal.holds) == (0.1, 1.0, False)
    assert figures.complaints() == []


def test_the_figures_of_a_cell_are_medians_over_the_rounds() -> None:
    cell = Cell((sample(rate=1, cost=40), sample(rate=3, cost=4000), sample(rate=2, cost=60)))
    assert (cell.rate, cell.cost_us, cell.client_us, cell.server_us) == (2, 60, 15, 45)
    assert (cell.p50_ms, cell.p99_ms) == (None, None)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 51), (0.99, 100), (1.0, 100)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile(range(100, 0, -1), share) == expected


def test_slow_sides_get_fewer_events_but_enough_for_their_batches() -> None:
    fast, slow = SIDES["pgmq"], SIDES["dbos"]
    assert [fast.events(column, 10_000) for column in fast.columns] == [1000, *[10_000] * 6, 200]
    assert [slow.events(column, 10_000) for column in slow.columns] == [200, 500, 1000, 500, 500, 200]
    assert [slow.events(column, 500) for column in slow.columns] == [50, 100, 500, 100, 100, 50]


@pytest.mark.parametrize(("until", "without_peers"), [(199, 0), (200, 6)])
def test_the_first_round_without_peers_is_judged_by_the_rounds_of_all_sides_and_the_others_by_its_own_kind(
    monkeypatch: pytest.MonkeyPatch, until: float, without_peers: int
) -> None:
    # The round of all sides lasts 100 seconds, each round without peers 10.
    readings = [0, 100, *(at for began in range(100, 160, 10) for at in (began, began + 10))]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=iter(readings).__next__))
    race = Race(Figures(1.0), {}, {}, events=1)
    assert race.run([], rounds=1, more=6, until=until) == (1, without_peers)


def test_a_page_gets_the_figures_between_its_marks_and_keeps_the_rest(tmp_path: Path) -> None:
    page, chart = tmp_path / "scale.md", tmp_path / "images" / "race.png"
    page.write_text(f"before\n\n{PAGE_BEGINS}\nold\n{PAGE_ENDS}\n\nafter\n")
    figures = race(
        (BARE, DRAIN, sample(rate=1234, cost=100)),
        (KINGDOM, DRAIN, sample(cost=125)),
        ("pgmq", DRAIN, sample(rate=9999)),
    )
    draw_chart(figures, chart)
    for _ in range(2):
        fill_page(figures, page, "3 rounds", chart)
    lines = page.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "old" not in lines
    assert lines.count("| `bare` | 1,234 [25 + 75] |") == 1
    assert "| kingdom, drain, processor time as a multiple of bare | 1.25 | at most 1.25 | yes |" in lines
    assert "| kingdom, drain, rate as a multiple of pgmq | 0.10 | at least 1.00 | **no** |" in lines
    assert lines.count("![The rates of all sides](images/race.png)") == 1


def test_a_page_without_marks_is_refused_and_not_changed(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text("words\n")
    with pytest.raises(ValueError, match="has no lines"):
        fill_page(race((BARE, DRAIN, sample())), page, "3 rounds", None)
    assert page.read_text() == "words\n"

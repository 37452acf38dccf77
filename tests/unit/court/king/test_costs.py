"""Costs by day, General, repository and model, and the forecast for a month."""

from datetime import date, timedelta
from decimal import Decimal

import pytest

from kingdom.actions.costs import forecast_month
from kingdom.court.king.costs import DEFAULT_MODEL, OTHERS, DayCosts, split_by_model
from kingdom.views.costs import MonthCosts
from kingdom.workflow.model.run.workflow import Workflow
from tests.unit.workflow.model.scene import NOON, task, template, work

FIRST = date(2026, 11, 1)


def day(number: int, usd: str) -> DayCosts:
    return DayCosts(day=FIRST + timedelta(days=number - 1), usd=Decimal(usd))


def run(**costs: float) -> Workflow:
    """Return a run with a Work for each model, each with its cost."""
    workflow = Workflow.copied_from(template(*(work(name, task(), model=name) for name in costs)), "wf-1", NOON)
    for each, cost in zip(workflow.works, costs.values(), strict=True):
        each.cost_usd = cost
    return workflow


def test_each_division_of_a_day_adds_up_to_its_sum() -> None:
    costs = day(1, "0")
    costs.add("gen-pr", "acme/app", {"opus": Decimal("1.5"), "haiku": Decimal("0.25")})
    costs.add("gen-jira", "acme/app", {"opus": Decimal(1)})
    assert costs.usd == Decimal("2.75")
    assert costs.generals == {"gen-pr": Decimal("1.75"), "gen-jira": Decimal(1)}
    assert costs.repositories == {"acme/app": Decimal("2.75")}
    assert costs.models == {"opus": Decimal("2.5"), "haiku": Decimal("0.25")}


def test_a_day_with_very_many_names_keeps_a_bounded_record_and_every_cent() -> None:
    costs = day(1, "0")
    for number in range(2000):
        costs.add("gen-pr", f"acme/{number}", {"opus": Decimal("0.01")})
    assert len(costs.repositories) == 501
    assert sum(costs.repositories.values()) == costs.usd == Decimal(20)
    assert costs.repositories[OTHERS] == Decimal(15)


@pytest.mark.parametrize(
    ("workflow", "booked", "usd", "split"),
    [
        (run(opus=1.0, haiku=0.5), {}, "1.5", {"opus": "1.0", "haiku": "0.5"}),
        (run(opus=1.0, haiku=0.5), {"opus": "1.0"}, "0.5", {"haiku": "0.5"}),
        (run(opus=1.0), {}, "1.25", {"opus": "1.0", OTHERS: "0.25"}),
        # The run has cost more than its assignment has recorded so far. The rest is booked with the next cost.
        (run(opus=1.0, haiku=0.5), {}, "1.2", {"opus": "1.0", "haiku": "0.2"}),
        (None, {}, "0.3", {OTHERS: "0.3"}),
        (run(opus=1.0), {"opus": "1.0"}, "0", {}),
    ],
)
def test_a_cost_is_divided_by_model_and_no_cent_is_counted_twice(
    workflow: Workflow | None, booked: dict[str, str], usd: str, split: dict[str, str]
) -> None:
    known = {name: Decimal(amount) for name, amount in booked.items()}
    found = split_by_model(workflow, known, Decimal(usd))
    assert found == {name: Decimal(amount) for name, amount in split.items()}


def test_a_work_without_a_model_counts_as_the_default_of_its_agent() -> None:
    workflow = run(opus=1.0)
    assert split_by_model(Workflow.copied_from(template(work("a", task())), "wf-1", NOON), {}, Decimal(0)) == {}
    workflow.works[0].definition = work("a", task())
    assert split_by_model(workflow, {}, Decimal(1)) == {DEFAULT_MODEL: Decimal(1)}


def test_the_forecast_of_a_month_uses_the_average_of_the_last_complete_days() -> None:
    known = [day(1, "2"), day(3, "4"), day(4, "1")]
    # Three complete days cost 6 dollars in total. On the fourth day, 26 days of November remain.
    assert forecast_month(known, FIRST + timedelta(days=3)) == MonthCosts(spent=7.0, forecast=7.0 + 26 * 2.0)
    # Days of the month before count for the average only.
    earlier = [DayCosts(day=FIRST - timedelta(days=10), usd=Decimal(10))]
    assert forecast_month(earlier, FIRST) == MonthCosts(spent=0.0, forecast=29.0)


def test_without_a_complete_day_there_is_no_forecast() -> None:
    assert forecast_month([day(1, "2")], FIRST) == MonthCosts(spent=2.0, forecast=None)
    assert forecast_month([], FIRST) == MonthCosts(spent=0.0, forecast=None)

"""Rendering a list of runs costs a few times what a bare template with as many rows, values and bytes costs."""

import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import jinja2
import pytest

from kingdom.access.rights import Right, Visitor
from kingdom.clock import utc_now
from kingdom.web.pages.frame import render
from kingdom.web.pages.run_rows import run_row
from kingdom.web.pages.runs import GROUPS, RunsPageQuery
from kingdom.web.pages.wording import ago
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.web.scene import TITLE, make_run

RUNS, ROUNDS, TIMES_MAX = 50, 40, 5
# A row of the list of runs prints about as many values.
VALUES = 16
BARE = """<!doctype html><html><head><title>Runs</title></head><body><table>
{% for row in rows %}<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table></body></html>"""
NOW = utc_now()
ANNA = Visitor(name="anna", rights=tuple(Right))


def runs() -> list[Workflow]:
    made = (f"wf-task-20261118-{number:03}" for number in range(RUNS))
    at = NOW - timedelta(minutes=9)
    return [make_run(each, WorkflowStatus.RUNNING, "gen-ticket", title=TITLE, reason="", at=at) for each in made]


def list_of(shown: list[Workflow]) -> str:
    """Render the list of runs as its page does."""
    return render(
        "runs.html",
        rows=[run_row(run, ANNA, ago(run.created_at, NOW)) for run in shown],
        visitor=ANNA,
        now=NOW,
        asks=2,
        here="/runs",
        cursor="1.1",
        query=RunsPageQuery(),
        generals=["gen-ticket"],
        repositories=[],
        following="x",
        groups=GROUPS,
    )


def processor_seconds(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return time.thread_time() - began


@pytest.mark.benches
def test_a_list_of_fifty_runs_costs_a_few_times_a_bare_template_of_its_size() -> None:
    shown = runs()
    page = list_of(shown)
    assert page.count("<tr data-row") == RUNS
    text = "x" * (len(page) // RUNS // VALUES - len("<td></td>"))
    template = jinja2.Environment(autoescape=True).from_string(BARE)
    rows = [[text] * VALUES for _ in range(RUNS)]
    assert len(template.render(rows=rows)) == pytest.approx(len(page), rel=0.1)
    ours, bare = [], []
    for _ in range(ROUNDS):
        ours.append(processor_seconds(lambda: list_of(shown)))
        bare.append(processor_seconds(lambda: template.render(rows=rows)))
    cost, base = statistics.median(ours), statistics.median(bare)
    assert cost <= TIMES_MAX * base, f"{1000 * cost:.2f} ms of processor time, the bare template {1000 * base:.2f} ms"

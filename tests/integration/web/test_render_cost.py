"""A list of runs costs at most a few times as much as a minimal page with as many rows, values and bytes."""

import asyncio
import gc
import http.client
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import jinja2
import pytest
from aiohttp import web

from kingdom.access.rights import Right, Visitor
from kingdom.bus import Record
from kingdom.clock import utc_now
from kingdom.web.pages.frame import render
from kingdom.web.pages.run_rows import row_html, run_row
from kingdom.web.pages.runs import GROUPS, RunsPageQuery
from kingdom.web.pages.wording import ago
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.integration.web.scene import TITLE, make_run
from tests.integration.web.site import Site, serving

RUNS, ROUNDS, TIMES_MAX = 50, 40, 5
# A request also checks the session and reads the store, which the bare page does not.
REQUEST_TIMES_MAX = 10
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
        rows=[row_html(run_row(run, ANNA, ago(run.created_at, NOW)), can_choose=True) for run in shown],
        visitor=ANNA,
        now=NOW,
        open_questions=2,
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


def bare_template(size: int) -> Callable[[], str]:
    """Return a function that renders a bare page of about this size."""
    text = "x" * (size // RUNS // VALUES - len("<td></td>"))
    template = jinja2.Environment(autoescape=True).from_string(BARE)
    rows = [[text] * VALUES for _ in range(RUNS)]
    return lambda: template.render(rows=rows)


@asynccontextmanager
async def bare_server(bare: Callable[[], str]) -> AsyncIterator[str]:
    """Serve a page, and yield its address."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=bare(), content_type="text/html")

    app = web.Application()
    app.router.add_get("/", show)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}/"
    finally:
        await runner.cleanup()


def request_seconds(pages: Sequence[tuple[str, Mapping[str, str]]], rounds: int) -> list[float]:
    """Return the processor time that this process takes for each page, without the thread of this client."""
    clients = [(http.client.HTTPConnection(urlsplit(url).netloc), urlsplit(url).path, head) for url, head in pages]
    found: list[list[float]] = [[] for _ in pages]
    for _ in range(rounds):
        for seconds, (client, path, head) in zip(found, clients, strict=True):
            began = time.process_time() - time.thread_time()
            client.request("GET", path, headers=dict(head))
            assert client.getresponse().read()
            seconds.append(time.process_time() - time.thread_time() - began)
    for client, _, _ in clients:
        client.close()
    return [statistics.median(seconds) for seconds in found]


async def fill(site: Site) -> None:
    async with site.bus.transaction() as transaction:
        for run in runs():
            await transaction.put(Record(kind=WORKFLOWS.name, id=run.id, state=run.status, doc=run.document()))


@pytest.mark.benches
def test_a_list_of_fifty_runs_of_which_one_has_changed_costs_a_few_times_a_bare_template_of_its_size() -> None:
    shown = runs()
    page = list_of(shown)
    assert page.count("<tr data-row") == RUNS
    bare = bare_template(len(page))
    assert len(bare()) == pytest.approx(len(page), rel=0.1)
    ours, base = [], []
    for number in range(ROUNDS):
        # A page asks again when a run has changed.
        shown[0].name = f"{TITLE} {number}"
        ours.append(processor_seconds(lambda: list_of(shown)))
        base.append(processor_seconds(bare))
    cost, bare_cost = statistics.median(ours), statistics.median(base)
    assert cost <= TIMES_MAX * bare_cost, f"{1000 * cost:.2f} ms, the bare template {1000 * bare_cost:.2f} ms"


@pytest.mark.benches
async def test_a_request_for_fifty_runs_costs_a_few_times_a_bare_page_of_its_size(
    backend: BackendUnderTest, tmp_path: Path
) -> None:
    async with serving(backend, tmp_path) as site:
        await fill(site)
        headers = {"Cookie": await site.signs_in("anna"), "Accept": "text/html"}
        page = await site.send("GET", "/runs", **headers)
        assert page.text.count("<tr data-row") == RUNS
        async with bare_server(bare_template(len(page.text))) as url:
            pages = [(f"{site.url}/runs", headers), (url, {})]
            # As `kingdom web` does when it is ready.
            gc.collect()
            gc.freeze()
            cost, base = await asyncio.to_thread(request_seconds, pages, ROUNDS)
    assert cost <= REQUEST_TIMES_MAX * base, f"{1000 * cost:.2f} ms, the bare page {1000 * base:.2f} ms"


async def test_the_list_looks_at_the_file_of_each_run_once(realm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    lstat = os.lstat

    def count(path: str) -> os.stat_result:
        looked.append(path)
        return lstat(path)

    async with serving(BACKENDS["files"](str(realm)), realm.parent) as site:
        await fill(site)
        headers = {"Cookie": await site.signs_in("anna"), "Accept": "text/html"}
        await site.send("GET", "/runs", **headers)
        monkeypatch.setattr(os, "lstat", count)
        page = await site.send("GET", "/runs", **headers)
    assert page.text.count("<tr data-row") == RUNS
    files = [path for path in looked if "/workflows/" in path]
    assert len(files) == len(set(files)) == RUNS

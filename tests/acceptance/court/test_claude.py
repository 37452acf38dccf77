"""Stories of the court with real soldiers: Claude Code in the strict sandbox, with a model stub behind the proxy."""

import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import pytest
import pytest_asyncio

from bench.court.court_processes import REPO
from tests.acceptance.court import stories
from tests.acceptance.court.court import Court
from tests.acceptance.court.opening import opened_court_with
from tests.acceptance.court.packages import QUESTION
from tests.fakes.model.stub import ModelStub

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.agents,
    pytest.mark.skipif(find_spec("claude_agent_sdk") is None, reason="claude-agent-sdk is not installed"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
KEY = "sk-ant-api03-a-key-that-no-agent-ever-sees"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model() -> AsyncIterator[ModelStub]:
    async with ModelStub() as model:
        yield model


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def court(claude_url: str, model: ModelStub, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Court]:
    """A separate court, in which only the model follows a script."""
    directory = tmp_path_factory.mktemp("claude")
    (directory / "model.key").write_text(KEY)
    soldiers = {"agent": "claude", "sandbox": "strict", "model": {"url": model.url, "key": "file:model.key"}}
    async with opened_court_with(directory, claude_url, soldiers) as court:
        yield court


async def result(court: Court, task_id: str) -> dict[str, Any]:
    found = await court.document("result", task_id)
    assert found
    return found


def show(court: Court, name: str) -> str:
    """Return the content that git shows for a name in the one repository."""
    words = ("git", "-C", str(court.processes.source), "show", name)
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


async def test_claude_reviews_a_pull_request(court: Court) -> None:
    story, number = await stories.review_by_hook(court)
    task = story.task.id
    reviews = await court.processes.calls("github", "POST review")
    assert [(each["repository"], each["number"]) for each in reviews] == [(REPO, number)]
    assert story.event.outcome == "completed"
    assert [message["text"] for message in story.thread] == [
        f"gen-pr starts github.pr.review_requested in {REPO} as {task}.",
        f"{task} is completed: Reviewed without findings.",
    ]
    final, raw = await result(court, task), await result(court, f"{task}-raw")
    assert final["metrics"]["cost_usd"] == pytest.approx(0.05, rel=0.05)
    assert raw["details"] == {"findings": 0}
    memory = court.processes.directory / "generals" / "gen-pr" / "memory" / "repository-acme.shop.md"
    assert "Reviews by the scripted agent find nothing." in memory.read_text()


async def test_claude_never_has_the_key_that_opens_its_model(court: Court, model: ModelStub) -> None:
    assert {served.headers.get("x-api-key") for served in model.asked} == {KEY}
    written = [path for path in (court.processes.directory / "soldiers").rglob("*") if path.is_file()]
    assert any(path.suffix == ".json" and b'"agent":"claude"' in path.read_bytes() for path in written)
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


async def test_claude_plans_a_ticket_and_implements_it_once_a_person_has_clicked(court: Court) -> None:
    story = await stories.ticket(court)
    assert story.event.outcome == "completed"
    (pull,) = await court.processes.calls("github", "POST pull request")
    (ref,) = await court.processes.calls("github", "POST git ref")
    assert (pull["title"], f"refs/heads/{pull['head']}") == ("Write the manual", ref["ref"])
    assert show(court, f"{ref['sha']}:docs/ticket.md") == "Write the manual"
    (comment,) = await court.processes.calls("jira", "POST comment")
    assert comment["key"] == story.event.payload["key"]
    soldiers = [each["soldier_id"] for each in await court.logged_data("soldier.completed", task_id=story.task.id)]
    assert len(set(soldiers)) == 2
    assert story.thread[-1]["text"] == f"{story.task.id} is completed: Implemented as planned."


async def test_claude_asks_a_person_and_continues_with_the_answer(court: Court) -> None:
    story = await stories.question(court)
    root, resumed = story.task, story.resumed
    assert (story.waiting.status, resumed.status, resumed.root) == ("needs_human", "completed", root.id)
    assert await court.logged_data("task.needs_human", task_id=root.id) == [{"task_id": root.id, "question": QUESTION}]
    assert await court.logged_data("task.resumed", original_task_id=root.id) == [
        {"task_id": resumed.id, "original_task_id": root.id}
    ]
    (session,) = {each["soldier_id"] for each in await court.logged_data("soldier.spawned", task_id=root.id)}
    assert session
    assert story.thread[-1]["text"] == f"{root.id} is completed: Painted it green."

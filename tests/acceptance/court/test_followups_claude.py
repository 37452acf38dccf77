"""A ticket becomes a pull request with Claude Code: its rounds go on in the session that opened it."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio

from bench.court.court_processes import ROLES
from bench.court.until_merged import (
    ANSWERS,
    COST,
    GIT_ID,
    REPO,
    REVIEWER,
    FollowedPull,
    open_pull,
    prepare_github,
    write_general,
)
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.run.work import session_of, soldier_of
from tests.acceptance.court.court import Court
from tests.acceptance.court.opening import empty_court
from tests.fakes.model.stub import ModelStub
from tests.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.agents,
    pytest.mark.skipif(find_spec("claude_agent_sdk") is None, reason="claude-agent-sdk is not installed"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
# The first line of what only the prompt of a new session says.
REPORTS = "## What happened before"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model() -> AsyncIterator[ModelStub]:
    async with ModelStub() as model:
        yield model


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def court(model: ModelStub, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Court]:
    directory = tmp_path_factory.mktemp("followed-by-claude")
    async with empty_court(directory, "") as court:
        processes = court.processes
        source = str(processes.source)
        await processes.kingdom("git", "create", GIT_ID, source, "--repo", REPO, "--checkpoint-remote", source)
        await prepare_github(processes)
        settings = write_general(processes)
        (directory / "model.key").write_text("sk-ant-api03-a-key-of-nobody")
        settings["soldiers"] |= {
            "agent": "claude",
            "sandbox": "strict",
            "model": {"url": model.url, "key": f"file:{directory / 'model.key'}"},
        }
        processes.write_settings(settings)
        await asyncio.gather(*(processes.start(name) for name in ROLES))
        yield court


async def sessions(pull: FollowedPull) -> list[str]:
    """Return the session of each run, the oldest first. No soldier works in two runs."""
    tokens = [run.works[0].agent.session or "" for run in await pull.runs()]
    assert len({soldier_of(token) for token in tokens}) == len(tokens)
    return [session_of(token) for token in tokens]


async def test_rounds_of_claude_go_on_in_the_session_that_opened_the_pull_request(
    court: Court, model: ModelStub
) -> None:
    pull = await open_pull(court.processes, court.bus, "Write a text", PATIENCE_SECONDS)
    await pull.fail_check()
    await court.processes.kill("soldiers")
    await court.processes.start("soldiers")
    await pull.request_changes()
    assert len(set(await sessions(pull))) == 1
    runs = await pull.runs()
    assert [run.works[0].agent.uses_earlier_session for run in runs] == [None, True, True]
    prompts = json.dumps([served.body["messages"] for served in model.asked][-1])
    assert "acme/followed" in prompts
    assert prompts.count("# Work on pull request") == 2, "the model sees the prompts of both rounds"
    assert REPORTS not in prompts
    assert (await pull.followup()).cost_usd == pytest.approx(2 * COST, rel=0.05)
    replies = (await court.processes.look("github", "state"))["review_comments"]
    ours = sorted(each["body"].split("\n")[0] for each in replies if each["user"] != REVIEWER)
    assert ours == sorted(ANSWERS)


async def test_a_round_begins_a_new_session_with_the_reports_if_the_earlier_one_is_gone(
    court: Court, model: ModelStub
) -> None:
    pull = await open_pull(court.processes, court.bus, "Write another text", PATIENCE_SECONDS)
    [first] = await pull.runs()
    folders = HostFolders(Path(court.processes.directory, "soldiers"))
    shutil.rmtree(folders.home(first.id))
    await pull.fail_check()
    assert len(set(await sessions(pull))) == 2
    assert [run.works[0].agent.uses_earlier_session for run in await pull.runs()] == [None, False]
    assert REPORTS in json.dumps([served.body["messages"] for served in model.asked][-1])

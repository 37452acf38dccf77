"""Checks and statuses on the stand-in for GitHub, as the official client and a receiver of webhooks see them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from github import Github

from tests.integration.standins.github import REPOSITORY, SECRET, Site, receiving, standing_in

HEAD = "c0ffee" + "0" * 34


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with standing_in(tmp_path / "github.json") as site:
        await site.pull_request(sha=HEAD)
        yield site


async def test_the_official_client_reads_the_newest_run_of_each_check_with_its_annotations(site: Site) -> None:
    annotation = {"path": "a.py", "start_line": 3, "message": "it is red"}
    await site.happen("check", number=1, name="test", conclusion="failure")
    report = {"title": "1 failed", "summary": "Red.", "annotations": [annotation]}
    await site.happen("check", number=1, name="test", conclusion="failure", output=report)
    await site.happen("check", number=1, name="lint", status="in_progress")

    def look(client: Github) -> list[Any]:
        commit = client.get_repo(REPOSITORY).get_pull(1).head.repo.get_commit(HEAD)
        runs = {run.name: run for run in commit.get_check_runs()}
        (suite,) = commit.get_check_suites()
        notes = [(note.path, note.start_line, note.message) for note in runs["test"].get_annotations()]
        states = {name: (run.status, run.conclusion) for name, run in runs.items()}
        return [states, notes, runs["test"].output.title, (suite.status, suite.conclusion), suite.app.slug]

    states = {"test": ("completed", "failure"), "lint": ("in_progress", None)}
    note = ("a.py", 3, "it is red")
    assert await site.official(look) == [states, [note], "1 failed", ("in_progress", None), "github-actions"]
    of_commit = await site.read(f"/repos/{REPOSITORY}/commits/{HEAD}/check-runs?filter=all")
    assert of_commit["total_count"] == 3
    # The stand-in finds runs by the id of the commit, not by the name of the branch.
    of_branch = await site.read(f"/repos/{REPOSITORY}/commits/feature/check-runs?filter=all")
    assert of_branch["total_count"] == 0


async def test_a_suite_is_announced_as_completed_after_its_last_run(site: Site) -> None:
    async with receiving() as receiver:
        await site.happen("hook", url=receiver.url, secret=SECRET)
        for name, conclusion in (("lint", None), ("test", "failure"), ("lint", "success")):
            status = "in_progress" if conclusion is None else "completed"
            await site.happen("check", number=1, name=name, status=status, conclusion=conclusion)
        names = await receiver.wait_for(6)
        suite = receiver.got[-1][2]["check_suite"]
    runs = ["check_run.created", "check_run.created", "check_run.completed", "check_run.completed"]
    assert names == ["ping", *runs, "check_suite.completed"]
    assert (suite["conclusion"], suite["head_sha"], suite["head_branch"]) == ("failure", HEAD, "feature")
    assert [pull["number"] for pull in suite["pull_requests"]] == [1]


async def test_statuses_that_the_official_client_reports_are_combined(site: Site) -> None:
    def report(client: Github) -> list[Any]:
        commit = client.get_repo(REPOSITORY).get_commit(HEAD)
        states = [commit.get_combined_status().state]
        for state, context in (("pending", "ci"), ("success", "ci"), ("success", "lint"), ("failure", "ci")):
            commit.create_status(state, context=context)
            states.append(commit.get_combined_status().state)
        newest = commit.get_statuses()[0]
        return [states, (newest.context, newest.state)]

    assert await site.official(report) == [["pending", "pending", "success", "success", "failure"], ("ci", "failure")]


async def test_a_log_is_downloaded_and_a_job_runs_again(site: Site) -> None:
    run = await site.happen("check", number=1, name="test", conclusion="cancelled", log="line 1\nline 2\n")
    job = f"/repos/{REPOSITORY}/actions/jobs/{run['id']}"
    redirect = await site.ask("GET", f"{job}/logs", allow_redirects=False)
    assert redirect.status == 302
    async with site.session.get(redirect.headers["Location"]) as answer:
        assert await answer.text() == "line 1\nline 2\n"
    assert (await site.ask("POST", f"{job}/rerun")).status == 201
    (latest,) = (await site.read(f"/repos/{REPOSITORY}/commits/{HEAD}/check-runs"))["check_runs"]
    assert (latest["status"], latest["conclusion"], latest["id"] != run["id"]) == ("queued", None, True)


async def test_only_an_app_can_create_check_runs(site: Site) -> None:
    refused = await site.ask("POST", f"/repos/{REPOSITORY}/check-runs", json={"name": "test", "head_sha": HEAD})
    assert (refused.status, (await refused.json())["message"]) == (403, "You must authenticate via a GitHub App.")

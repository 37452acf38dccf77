"""A ticket becomes a pull request, which is followed until it is merged: every role is a process, and git is real."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from bench.court.court_processes import ROLES
from kingdom.court.documents import FOLLOWUP, Assignment
from kingdom.court.followups.records import FOLLOWUPS, Followup
from tests.acceptance.court.court import Court, wait
from tests.acceptance.court.opening import empty_court
from tests.acceptance.court.packages import gates

pytestmark = [pytest.mark.asyncio(loop_scope="session")]
GENERAL = "gen-follow"
# A repository on GitHub with a real git directory.
REPO = "acme/followed"
REVIEWER = "anna"
COST = 0.25
TEXT = "one\ntwo\nthree\n"
IDENTITY = "-c user.name=Agent -c user.email=agent@localhost"
# What the agent does in a round. The title of the round says why it started.
ROUND = f"""\
set -e
title=$(cat title)
cd "$1"
case "$title" in *checks*) echo more >> check;; esac
case "$title" in *review*) sed -i 's/^one$/eins/; s/^two$/zwei/' text;; esac
case "$title" in *conflicts*)
  git {IDENTITY} merge origin/main && exit 1
  printf 'eins\\nzwei\\nthree!\\n' > text
  git add text
  git {IDENTITY} commit -m 'Take in main';;
esac
"""


def steps(*lines: str) -> str:
    return "\n".join(["```script", *lines, "```"])


def package(script: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a General that opens a pull request for each ticket, and follows it."""
    opening = steps(
        json.dumps({"write": "{{ git }}/text", "text": TEXT}),
        '{"petition": "github.pull_request", "body": {"repo": {{ json repo }}, "title": {{ json payload.summary }}}}',
        '{"result": {"status": "success", "summary": "Wrote the text."}}',
        '{"answer": "Wrote the text."}',
    )
    threads = [
        f'{{"petition": "github.reply", "body": {{"thread": {{{{ json payload.reviews.0.comments.{number}.thread }}}},'
        f' "body": "Answer {number}."}}}}'
        for number in range(3)
    ]
    round_ = steps(
        '{"write": "title", "text": {{ json payload.title }}}',
        f'{{"run": "sh {script} {{{{ git }}}}"}}',
        '{"petition": "github.push", "body": {"number": {{ json payload.number }}}}',
        *threads,
        '{"result": {"status": "success", "summary": "Did what was asked."}}',
        json.dumps({"cost": COST}),
        '{"answer": "Did what was asked."}',
    )
    kinds = [{"kind": "github.pull_request"}, {"kind": "github.push"}, {"kind": "github.reply", "at_most": 3}]
    general = {
        # Before gen-jira.
        "order": 1,
        "default_repo": REPO,
        "subscribes": [{"type": "jira.ticket.assigned"}],
        "policy": {"petitions": kinds},
        "follow": {"debounce_seconds": 0, "instructions": round_},
    }
    works = [{"name": "write", "tasks": [{"query": opening, "timeoutSeconds": 600}]}]
    return general, {"name": "Write a text", "gitRefs": ["event-repo"], "works": works}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def court(followed_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Court]:
    async with empty_court(tmp_path_factory.mktemp("followed"), followed_url) as court:
        processes = court.processes
        script = gates(processes) / "round.sh"
        script.parent.mkdir()
        script.write_text(ROUND)
        processes.write_general(GENERAL, *package(script))
        source = str(processes.source)
        await processes.kingdom("git", "create", "followed", source, "--repo", REPO, "--checkpoint-remote", source)
        await processes.people("github", "repository", repository=REPO, git=source)
        await processes.people("github", "permission", repository=REPO, login=REVIEWER, permission="write")
        # Without webhooks the Sentinel looks every second.
        settings = {
            "sentinel": {"github": {"webhook": None}},
            "soldiers": {"may_commit": True, "path": [str(script.parent)]},
        }
        processes.write_settings(settings)
        await asyncio.gather(*(processes.start(name) for name in ROLES))
        yield court


def git(court: Court, *words: str) -> str:
    """Run git in the repository on GitHub."""
    call = ["git", *IDENTITY.split(), "-C", str(court.processes.source), *words]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


class Pull:
    """A followed pull request, and what people do with it."""

    def __init__(self, court: Court, number: int) -> None:
        self.court = court
        self.number = number

    async def happen(self, what: str, **doing: Any) -> Any:
        action = {"repository": REPO, "number": self.number, "by": REVIEWER, **doing}
        return await self.court.processes.people("github", what, action)

    async def followup(self) -> Followup:
        doc = await self.court.document(FOLLOWUPS.name, f"{REPO}#{self.number}")
        assert doc
        return msgspec.convert(doc, Followup)

    async def until(self, **fields: object) -> Followup:
        """Wait until the followup has these values."""

        async def there() -> Followup | None:
            followup = await self.followup()
            return followup if all(getattr(followup, name) == value for name, value in fields.items()) else None

        return await wait(there, f"{self.number}: {fields}")

    async def round(self, count: int) -> Assignment:
        """Wait until a round has ended."""

        async def ended() -> Assignment | None:
            rounds = [each for each in await self.court.assignments(type=FOLLOWUP, number=self.number) if each.ended_at]
            return rounds[-1] if len(rounds) == count else None

        task = await wait(ended, f"round {count} of {self.number}")
        assert task.status == "completed", task.reason
        return task

    def show(self, name: str, head: str) -> str:
        return git(self.court, "show", f"{head}:{name}")


async def opened(court: Court, summary: str) -> Pull:
    """Assign a ticket, and wait until its pull request is followed."""
    await court.processes.people("jira", "tickets", project="QP", summary=summary, assignee="me")

    async def number() -> int | None:
        issues = (await court.processes.look("github", "state"))["issues"].get(REPO, {}).values()
        return next((each["number"] for each in issues if each["title"] == summary), None)

    found = await wait(number, f"a pull request for {summary!r}")

    async def is_followed() -> bool:
        return await court.document(FOLLOWUPS.name, f"{REPO}#{found}") is not None

    await wait(is_followed, f"{found} is followed")
    return Pull(court, found)


async def test_a_ticket_is_followed_until_its_pull_request_is_merged(court: Court) -> None:
    pull = await opened(court, "Write a text")
    first = await pull.followup()
    assert pull.show("text", first.head) == TEXT.strip()

    await pull.happen("check", name="unit", conclusion="failure", log="the file check is missing")
    await pull.round(1)
    fixed = await pull.followup()
    assert pull.show("check", fixed.head) == "more"
    assert git(court, "rev-parse", first.branch) == fixed.head

    await pull.happen("check", name="unit", conclusion="success")
    lines = [{"path": "text", "line": 1, "body": "Say eins."}, {"path": "text", "line": 2, "body": "Say zwei."}]
    question = {"path": "text", "line": 3, "body": "Why three?"}
    await pull.happen("review", event="REQUEST_CHANGES", body="Please change this.", comments=[*lines, question])
    await pull.round(2)
    reviewed = await pull.followup()
    assert pull.show("text", reviewed.head) == "eins\nzwei\nthree"
    replies = (await court.processes.look("github", "state"))["review_comments"]
    ours = [(each["in_reply_to"], each["body"].split("\n")[0]) for each in replies if each["user"] == "kingdom-bot"]
    asked = [each["id"] for each in replies if each["user"] == REVIEWER]
    assert sorted(ours) == [(comment, f"Answer {number}.") for number, comment in enumerate(asked)]

    theirs = move_main(court, "one\ntwo\nthree!\n")
    await court.processes.people("github", "push", repository=REPO, branch="main", sha=theirs)
    await pull.round(3)
    resolved = await pull.followup()
    assert pull.show("text", resolved.head) == "eins\nzwei\nthree!"
    git(court, "merge-base", "--is-ancestor", theirs, resolved.head)

    await pull.happen("close", merge=True)
    ended = await pull.until(state="ended")
    assert ended.reason == "it was merged"
    assert ended.rounds == {"review": 1, "checks": 1, "conflicts": 1}
    assert ended.cost_usd == pytest.approx(3 * COST)
    assert len(await court.processes.calls("github", "mutation updateRefs")) == 3
    assert git(court, "show", "main:text") == "eins\nzwei\nthree!"


async def test_an_agent_that_fixes_nothing_is_stopped_and_a_person_is_asked(court: Court) -> None:
    pull = await opened(court, "Write another text")
    await pull.happen("check", name="unit", conclusion="failure")
    task = await pull.round(1)
    await pull.happen("check", name="unit", conclusion="failure")
    waiting = await pull.until(state="waiting")
    assert waiting.rounds == {"checks": 1}
    [question] = await court.processes.kingdom("inbox")
    assert "the last round repaired none of the failed checks: unit" in question["question"]
    assert (question["task_id"], question["choices"]) == (task.id, ["continue", "stop"])
    await court.processes.kingdom("answer", task.id, "stop")
    assert (await pull.until(state="ended")).reason.endswith("stopped it")
    assert len(await court.assignments(type=FOLLOWUP, number=pull.number)) == 1


def move_main(court: Court, text: str) -> str:
    """Create a commit on main that conflicts with the pull request, and return it."""
    blob = subprocess.run(
        ["git", "-C", str(court.processes.source), "hash-object", "-w", "--stdin"],
        input=text,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    tree = subprocess.run(
        ["git", "-C", str(court.processes.source), "mktree"],
        input=f"100644 blob {blob}\ttext\n",
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return git(court, "commit-tree", tree, "-p", "main", "-m", "Say three louder")

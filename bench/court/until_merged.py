"""A ticket becomes a pull request, which is followed until it is merged: the General, and what people do meanwhile."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from bench.court.court_processes import PATIENCE_SECONDS, CourtProcesses, eventually
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.court.documents import FOLLOWUP, Assignment
from kingdom.court.followups.records import FOLLOWUPS, Followup
from kingdom.court.records import ASSIGNMENTS
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import each_record, load_workflow

GENERAL = "gen-follow"
# A repository on GitHub with a real git directory.
REPO = "acme/followed"
GIT_ID = "followed"
REVIEWER = "anna"
COST = 0.25
TEXT = "one\ntwo\nthree\n"
# What the text says at the end, on the base branch.
MERGED_TEXT = "eins\nzwei\nthree!\n"
ANSWERS = tuple(f"Answer {number}." for number in range(3))
# The agent fills in how many prompts its session has got.
SUMMARY = "Did what was asked in prompt {prompts}."
_LINES = ("Say eins.", "Say zwei.", "Why three?")
_IDENTITY = "-c user.name=Agent -c user.email=agent@localhost"
# What the agent does in a round. The title of the round says why it started. A step may be repeated after a crash.
_ROUND = f"""\
set -e
title=$(cat title)
cd "$1"
case "$title" in *checks*) echo "$title" > check;; esac
case "$title" in *review*) sed -i 's/^one$/eins/; s/^two$/zwei/' text;; esac
case "$title" in *conflicts*)
  git merge-base --is-ancestor origin/main HEAD && exit
  git {_IDENTITY} merge origin/main && exit 1
  printf 'eins\\nzwei\\nthree!\\n' > text
  git add text
  git {_IDENTITY} commit -m 'Take in main';;
esac
"""


def write_general(processes: CourtProcesses) -> dict[str, Any]:
    """Write a General that opens a pull request for each ticket and follows it. Return the settings that it needs."""
    script = processes.directory / "scripts" / "round.sh"
    script.parent.mkdir()
    script.write_text(_ROUND)
    processes.write_general(GENERAL, *_package(script))
    return {
        # Without webhooks the Sentinel looks every second.
        "sentinel": {"github": {"webhook": None}},
        "soldiers": {"may_commit": True, "path": [str(script.parent)]},
    }


async def prepare_github(processes: CourtProcesses) -> None:
    """Create the repository on GitHub, with its reviewer."""
    await processes.people("github", "repository", repository=REPO, git=str(processes.source))
    await processes.people("github", "permission", repository=REPO, login=REVIEWER, permission="write")


class FollowedPull:
    """A followed pull request, and what people do with it. A method that causes a round waits until it has ended."""

    def __init__(self, processes: CourtProcesses, bus: Bus, number: int, seconds: float = PATIENCE_SECONDS) -> None:
        self.processes = processes
        self.number = number
        self._bus = bus
        self._seconds = seconds

    async def followup(self) -> Followup:
        """Return the followup."""
        found = await _find_followup(self._bus, self.number)
        assert found
        return found

    async def fail_check(self) -> Assignment:
        """Let a check fail."""
        await self.act("check", name="unit", conclusion="failure", log="the file check is missing")
        return await self.round(1)

    async def cancel_check(self) -> None:
        """Cancel a check, and wait until it is run again."""
        await self.act("check", name="unit", conclusion="cancelled")

        async def is_rerun() -> bool:
            return bool(await self.processes.calls("github", "POST job rerun"))

        await eventually(is_rerun, f"the check of {self.number} is run again", self._seconds)

    async def push_foreign_commit(self) -> str:
        """Let the reviewer push a commit to the branch, and return it."""
        commit = self._commit((await self.followup()).head, "notes", "A note of the reviewer.\n")
        await self.act("push", sha=commit)
        return commit

    async def request_changes(self) -> Assignment:
        """Let the check succeed, request changes on two lines, and ask a question on a third."""
        await self.act("check", name="unit", conclusion="success")
        lines = [{"path": "text", "line": number, "body": body} for number, body in enumerate(_LINES, start=1)]
        await self.act("review", event="REQUEST_CHANGES", body="Please change this.", comments=lines)
        return await self.round(2)

    async def move_base(self) -> str:
        """Push a commit to the base branch that conflicts with the pull request, and return it."""
        commit = self._commit(self.git("rev-parse", "main"), "text", "one\ntwo\nthree!\n")
        await self.processes.people("github", "push", repository=REPO, branch="main", sha=commit)
        await self.round(3)
        return commit

    async def merge(self) -> Followup:
        """Merge the pull request, and return the ended followup."""
        await self.act("close", merge=True)
        return await self.until(state="ended")

    async def act(self, what: str, **doing: Any) -> Any:
        """Perform an action of the reviewer on the pull request."""
        action = {"repository": REPO, "number": self.number, "by": REVIEWER, **doing}
        return await self.processes.people("github", what, action)

    async def until(self, **fields: object) -> Followup:
        """Wait until the followup has these values."""

        async def there() -> Followup | None:
            followup = await self.followup()
            return followup if all(getattr(followup, name) == value for name, value in fields.items()) else None

        found: Followup = await eventually(there, f"{self.number}: {fields}", self._seconds)
        return found

    async def rounds(self) -> list[Assignment]:
        """Return the assignments of all rounds."""
        async with self._bus.transaction() as transaction:
            records = each_record(transaction, RecordQuery(kind=ASSIGNMENTS.name))
            tasks = [msgspec.convert(record.doc, Assignment) async for record in records]
        return [task for task in tasks if task.type == FOLLOWUP and task.payload["number"] == self.number]

    async def runs(self) -> list[Workflow]:
        """Return the run that opened the pull request, and those of all rounds."""
        followup = await self.followup()
        async with self._bus.transaction() as transaction:
            return [(await load_workflow(transaction, run))[1] for run in followup.runs]

    async def round(self, count: int) -> Assignment:
        """Wait until a round has ended, and return its assignment."""

        async def ended() -> Assignment | None:
            rounds = [each for each in await self.rounds() if each.ended_at]
            return rounds[-1] if len(rounds) == count else None

        task: Assignment = await eventually(ended, f"round {count} of {self.number}", self._seconds)
        assert task.status == "completed", task.reason
        return task

    def show(self, name: str, commit: str) -> str:
        """Return a file in a commit."""
        return self.git("show", f"{commit}:{name}")

    def git(self, *words: str, **options: Any) -> str:
        """Run git in the repository on GitHub."""
        return git(self.processes.source, *words, **options)

    def _commit(self, parent: str, name: str, text: str) -> str:
        """Create a commit that writes a file, and return it."""
        blob = self.git("hash-object", "-w", "--stdin", input=text)
        files = [line for line in self.git("ls-tree", parent).splitlines() if not line.endswith(f"\t{name}")]
        tree = self.git("mktree", input="".join(f"{line}\n" for line in [*files, f"100644 blob {blob}\t{name}"]))
        return self.git("commit-tree", tree, "-p", parent, "-m", f"Write {name}")


async def open_pull(
    processes: CourtProcesses, bus: Bus, summary: str, seconds: float = PATIENCE_SECONDS
) -> FollowedPull:
    """Assign a ticket, and wait until its pull request is followed."""
    await processes.people("jira", "tickets", project="QP", summary=summary, assignee="me")

    async def number() -> int | None:
        issues = (await processes.look("github", "state"))["issues"].get(REPO, {}).values()
        return next((each["number"] for each in issues if each["title"] == summary), None)

    found = await eventually(number, f"a pull request for {summary!r}", seconds)

    async def is_followed() -> bool:
        return await _find_followup(bus, found) is not None

    await eventually(is_followed, f"{found} is followed", seconds)
    return FollowedPull(processes, bus, found, seconds)


def git(repository: Path, *words: str, **options: Any) -> str:
    """Run git in a repository."""
    call = ["git", *_IDENTITY.split(), "-C", str(repository), *words]
    done: subprocess.CompletedProcess[str]
    done = subprocess.run(call, check=True, capture_output=True, text=True, **options)
    return done.stdout.strip()


async def _find_followup(bus: Bus, number: int) -> Followup | None:
    async with bus.transaction() as transaction:
        record = await transaction.get(FOLLOWUPS.name, f"{REPO}#{number}")
    return msgspec.convert(record.doc, Followup) if record else None


def _package(script: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    opening = _steps(
        json.dumps({"write": "{{ git }}/text", "text": TEXT}),
        '{"petition": "github.pull_request", "body": {"repo": {{ json repo }}, "title": {{ json payload.summary }}}}',
        '{"result": {"status": "success", "summary": "Wrote the text."}}',
        '{"answer": "Wrote the text."}',
    )
    threads = [
        f'{{"petition": "github.reply", "body": {{"thread": {{{{ json payload.reviews.0.comments.{number}.thread }}}},'
        f' "body": "{answer}"}}}}'
        for number, answer in enumerate(ANSWERS)
    ]
    round_ = _steps(
        '{"write": "title", "text": {{ json payload.title }}}',
        f'{{"run": "sh {script} {{{{ git }}}}"}}',
        '{"petition": "github.push", "body": {"number": {{ json payload.number }}}}',
        *threads,
        '{"petition": "github.summary",'
        ' "body": {"number": {{ json payload.number }}, "body": {{ json payload.title }}}}',
        f'{{"result": {{"status": "success", "summary": "{SUMMARY}"}}}}',
        json.dumps({"cost": COST}),
        '{"answer": "Did what was asked."}',
    )
    general = {
        # Before gen-jira.
        "order": 1,
        "default_repo": REPO,
        "subscribes": [{"type": "jira.ticket.assigned"}],
        "policy": {
            # A run whose agent was killed continues, because it has money left.
            "budget_usd": 5,
            "retry_after_seconds": 0,
            "petitions": [
                {"kind": "github.pull_request"},
                {"kind": "github.push"},
                {"kind": "github.reply", "at_most": len(ANSWERS)},
                {"kind": "github.summary"},
            ],
        },
        "follow": {"debounce_seconds": 0, "instructions": round_},
    }
    works = [{"name": "write", "tasks": [{"query": opening, "timeoutSeconds": 600}]}]
    return general, {"name": "Write a text", "gitRefs": ["event-repo"], "works": works}


def _steps(*lines: str) -> str:
    return "\n".join(["```script", *lines, "```"])

"""What a shell completes after Tab, with a store and without one."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.bootstrap import open_bus
from kingdom.cli.completion import live_ids
from kingdom.cli.court.declarations import COURT
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, AssignmentStatus, Priority
from kingdom.court.records import save
from tests.acceptance.sample_store import AGAIN, ENDED, EVENT, PETITION, PULL_REQUEST, TASK, InProcessCli, SampleStore
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit of completion, after which it offers nothing."""
    monkeypatch.setattr(live_ids, "_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(live_ids, "_IDLE_LIMIT", timedelta(seconds=PATIENCE_SECONDS))


def test_words_are_completed_from_the_command_line_and_the_store(
    cli_on_sample: InProcessCli, sample: SampleStore
) -> None:
    def offered(*words: str) -> set[str]:
        return {line.partition("\t")[0] for line in cli_on_sample("--complete", *words).out.splitlines()}

    assert offered("wor") == {"workflow"}
    assert {"list", "show", "create"} <= offered("template", "")
    assert offered("workflow", "li") == {"list"}
    assert offered("event", "list", "--st") == {"--status"}
    assert offered("event", "list", "--status", "p") == {"pending"}
    assert offered("event", "list", "--status=p") == {"--status=pending"}
    runs = {sample.run, f"wf-{TASK}", "last", TASK, AGAIN, ENDED}
    assert offered("workflow", "show", "") == offered("cancel", "") == offered("logs", "") == runs
    assert offered("resume", "wf-t") == {f"wf-{TASK}"}
    assert offered("workflow", "report", f"wf-{TASK}", "") == {"w1-t1"}
    assert offered("show", "task-20260207") == offered("show", TASK) == {TASK, PETITION}
    assert offered("answer", "") == {TASK, "last"}
    assert offered("why", "la") == offered("assignment", "show", "la") == {"last"}
    assert offered("answer", TASK, "") == {"yes", "no", "not; yet"}
    assert offered("redrive", "") == {sample.dead}
    assert offered("workflow", "create", "") == {"greet"}
    assert "court.event" in offered("dead", "--stream", "")
    assert offered("petition", "show", "") == {PETITION}
    assert offered("followup", "stop", "") == {PULL_REQUEST}
    assert offered("git", "create", "") == set()
    assert offered("template", "create", "") == {":files"}
    assert offered("help", "work") == {"workflow"}
    assert offered("nonsense", "") == offered("workflow", "nonsense", "") == set()


def test_without_a_store_nothing_is_offered_and_no_store_is_created(cli: InProcessCli, tmp_path: Path) -> None:
    for words in (("show", ""), ("workflow", "show", "--database-url", "postgresql://nobody@127.0.0.1:1/none", "")):
        assert cli("--complete", *words) == cli("--complete", "nonsense", "")
    assert list(tmp_path.iterdir()) == []


def assign(realm: Path, tasks: Sequence[str]) -> None:
    """Make a store with assignments."""

    async def make() -> None:
        async with open_bus(f"file:{realm}", COURT.topology, COURT.kinds) as bus, bus.transaction() as transaction:
            for task in tasks:
                document = Assignment(
                    id=task,
                    event_id=EVENT,
                    target_general="gen-hello",
                    type="demo.hello",
                    payload={},
                    status=AssignmentStatus.COMPLETED,
                    priority=Priority.LOW,
                    created_at=utc_now(),
                )
                await save(transaction, document)

    asyncio.run(make())


def test_the_newest_of_many_ids_are_offered(cli: InProcessCli, tmp_path: Path) -> None:
    tasks = [f"task-202{year}0301-{number:03}" for year in (5, 6) for number in range(1, 151)]
    assign(tmp_path / "realm", [*tasks, "task-20270101-001"])

    def offered(begun: str) -> list[str]:
        return sorted(line.partition("\t")[0] for line in cli("--complete", "show", begun).out.splitlines())

    assert offered("") == [*tasks[-99:], "task-20270101-001"]
    assert offered("task-2025") == tasks[50:150]
    assert offered("task-20250301-00") == tasks[:9]


BASH = """
set -u
eval "$(kingdom completion bash)"
ask() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); COMP_LINE=${line:-$*}
    $(complete -p kingdom | sed 's/.*-F \\([^ ]*\\) .*/\\1/') kingdom
    echo "${COMPREPLY[@]-}"
}
realm=${KINGDOM_DATABASE_URL#file:}
line="kingdom show --database-url file:$realm evt-" KINGDOM_DATABASE_URL=file:none \
    ask kingdom show --database-url file : "$realm" evt-
line='kingdom event list --status=pen' ask kingdom event list --status = pen
ask kingdom wor
ask kingdom show evt-
ask kingdom answer task
ask kingdom answer task-20260207-001 not
"""
ZSH = """
eval "$(kingdom completion zsh)"
_describe() { echo ${(P)2%%:*} }
ask() { words=("$@"); CURRENT=$#; _kingdom }
ask kingdom wor
ask kingdom show evt-
ask kingdom answer task
_describe() { echo ${(P)2} }
ask kingdom answer task-20260207-001 not
"""
FISH = """
kingdom completion fish | source
for line in 'kingdom wor' 'kingdom show evt-' 'kingdom answer task' 'kingdom answer task-20260207-001 not'
    complete -C $line | string split -f 1 \\t
end
"""


@pytest.mark.installed
@pytest.mark.parametrize(
    ("shell", "script", "before", "text"),
    [("bash", BASH, [EVENT, "pending"], r"not\;\ yet"), ("zsh", ZSH, [], "not; yet"), ("fish", FISH, [], "not; yet")],
)
def test_a_real_shell_completes_live_ids(
    sample: SampleStore, tmp_path: Path, shell: str, script: str, before: list[str], text: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "KINGDOM_DATABASE_URL": sample.url, "LANG": "C.UTF-8"}
    done = subprocess.run(
        [program, "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.stdout.splitlines() == [*before, "workflow", EVENT, TASK, text], done.stderr
    assert not done.stderr

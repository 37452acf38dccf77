"""Files beside the records that people look for: prompts, and which soldiers and sessions an assignment had.

They are written after the commit that they tell of, whole and always from all of the run, so that what a crash left out
is there with the next word of it.
"""

from functools import partial
from pathlib import Path

import structlog

from kingdom.atomic_write import write_atomically
from kingdom.bus.port import Transaction
from kingdom.court.memory import apply_memory_updates
from kingdom.workflow.model.work import session_of, soldier_of
from kingdom.workflow.model.workflow import Workflow

_log = structlog.get_logger("kingdom.court")


def keep_prompts(transaction: Transaction, directory: Path, root_id: str, workflow: Workflow) -> None:
    """Write what the agents of a run are asked, a section for each Work."""
    sections = [
        f"# {work.definition.name}\n\n" + "\n\n".join(task.definition.query.strip() for task in work.tasks) + "\n"
        for work in workflow.works
    ]
    file = directory / "state" / "prompts" / f"{root_id}.md"
    transaction.after_commit(partial(write_atomically, file, "\n".join(sections)))


def keep_sessions(transaction: Transaction, directory: Path, root_id: str, workflow: Workflow) -> None:
    """Write the soldiers and sessions of a run, a line for each Work; the last is the current one."""
    tokens = [work.agent.session for work in workflow.works if work.agent.session]
    results = directory / "state" / "results"
    for name, lines in (("soldier-id", map(soldier_of, tokens)), ("session-id", map(session_of, tokens))):
        text = "".join(f"{line}\n" for line in lines)
        transaction.after_commit(partial(write_atomically, results / f"{root_id}-{name}", text))


def keep_memory(transaction: Transaction, directory: Path, repo: str, workflow: Workflow) -> None:
    """Write down what the agents of a run report to have learned."""
    updates = [
        update
        for work in workflow.works
        if isinstance(reported := (work.result or {}).get("memory_updates"), list)
        for update in reported
    ]

    source = f"{workflow.id}, {workflow.created_at:%Y-%m-%d}"

    def write() -> None:
        for refused in apply_memory_updates(directory, updates, repo, source):
            _log.warning("an agent's memory was not kept", workflow=workflow.id, reason=refused)

    if updates:
        transaction.after_commit(write)

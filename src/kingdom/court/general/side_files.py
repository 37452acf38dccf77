"""Files beside the records: the prompts of an assignment, and the memory of its General.

Each file is written after the commit, so a crash in between can lose the change.
"""

from functools import partial
from pathlib import Path

import structlog

from kingdom.atomic_write import write_atomically
from kingdom.bus.port import Transaction
from kingdom.court.memory import apply_memory_updates
from kingdom.workflow.model.run.workflow import Workflow

_log = structlog.get_logger("kingdom.court")


def write_prompts(transaction: Transaction, directory: Path, root_id: str, workflow: Workflow) -> None:
    """Write the prompts of a run, one section for each Work."""
    sections = [
        f"# {work.definition.name}\n\n" + "\n\n".join(task.definition.query.strip() for task in work.tasks) + "\n"
        for work in workflow.works
    ]
    file = directory / "state" / "prompts" / f"{root_id}.md"
    transaction.after_commit(partial(write_atomically, file, "\n".join(sections)))


def write_memory(transaction: Transaction, directory: Path, repo: str, workflow: Workflow) -> None:
    """Store what the agents of a run learned."""
    updates = [
        update
        for work in workflow.works
        if isinstance(reported := (work.result or {}).get("memory_updates"), list)
        for update in reported
    ]

    source = f"{workflow.id}, {workflow.created_at:%Y-%m-%d}"

    def write() -> None:
        for refused in apply_memory_updates(directory, updates, repo, source):
            _log.warning("a memory update of an agent was refused", workflow=workflow.id, reason=refused)

    if updates:
        transaction.after_commit(write)

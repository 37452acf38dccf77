"""Runs, their checkpoints and their results."""

from collections.abc import Sequence

import msgspec

from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.workflow import Workflow


class WorkflowDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run, its host if the host is known, and the allowed commands."""

    workflow: Workflow
    host: Host | None
    allowed: list[str]
    valid_checkpoints: list[str]


class CheckpointDetails(Checkpoint, frozen=True, kw_only=True):
    """A checkpoint, and whether the run can still roll back to it."""

    valid: bool


class RunReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The report of a Task. `versions` are the files of attempts that were rolled back."""

    task_id: str
    work_id: str
    work_name: str
    file_path: str
    text: str
    versions: Sequence[str]

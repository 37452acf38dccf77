"""A start command and a launch for agents that live in this process."""

from pathlib import Path

from kingdom.soldiers.agents.port import Launch
from kingdom.workflow.model.messages.commands import StartAgent


def a_start(work_id: str = "w1", attempt: int = 1) -> StartAgent:
    return StartAgent(
        workflow_id="wf-1",
        host="host-a",
        epoch=1,
        attempt=attempt,
        work_id=work_id,
        work_space_id=f"{work_id}-space",
        model="",
        session=None,
        work_tree_ids=(),
        mcp_server_refs=(),
        reports=(),
    )


def a_launch(folder: Path, soldier_id: str = "soldier-1") -> Launch:
    return Launch(
        soldier_id=soldier_id,
        work_space=folder,
        model="",
        session=None,
        transcript=folder / f"{soldier_id}.json",
        errors=folder / f"{soldier_id}.err",
        environment={},
        mcp_servers=(),
    )

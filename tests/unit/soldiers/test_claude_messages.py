"""What the transcript shows of the messages of Claude Code."""

from dataclasses import replace
from pathlib import Path

from claude_agent_sdk import AssistantMessage, ToolResultBlock, ToolUseBlock

from kingdom.soldiers.agents.claude.messages import outputs_in, updates_in
from kingdom.soldiers.agents.port import ToolUse
from kingdom.soldiers.redaction import REDACTED, Redaction
from tests.unit.soldiers.launching import a_launch

SECRET = "sesame-of-the-door"  # noqa: S105 - it opens nothing
REDACTION = Redaction([SECRET])


def test_a_tool_is_cut_without_the_beginning_of_a_secret(tmp_path: Path) -> None:
    command = "y" * 195
    launch = replace(a_launch(tmp_path), redaction=REDACTION)
    called = ToolUseBlock(id="c1", name="Bash", input={"command": command + SECRET})
    ((update, fields),) = updates_in(AssistantMessage(content=[called], model="best"), launch)
    assert isinstance(update, ToolUse)
    assert (update.tool, update.detail.rpartition(" #")[0], fields) == ("Bash", command + REDACTED, {"call": "c1"})


def test_an_output_is_cut_without_the_beginning_of_a_secret() -> None:
    output = "x" * 3995
    returned = ToolResultBlock(tool_use_id="c1", content=output + SECRET)
    assert list(outputs_in([returned], REDACTION)) == [{"call": "c1", "text": output + REDACTED, "isError": False}]

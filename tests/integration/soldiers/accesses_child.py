"""A process that accesses files of agents in the ways that a run of the scripted agent does not cover."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from kingdom.cli.attach.files_view import changed_files
from kingdom.soldiers.agent_tools.calls import RememberInput, ReportResultInput
from kingdom.soldiers.agent_tools.result_file import RESULT_FILE, add_memory, write_result
from kingdom.soldiers.agents.acp.invocation import move_session_files_aside, prepare_acp_invocation
from kingdom.soldiers.agents.claude.history import SessionFileTail, find_session_file, read_answer
from kingdom.soldiers.agents.command.command import CommandTemplate, prepare_command
from kingdom.soldiers.sandbox.prices import Price
from kingdom.soldiers.turns.result import is_unsuccessful, remove_unsuccessful_result
from kingdom.soldiers.workplace.host_folders import HostFolders
from tests.integration.processes import say
from tests.integration.soldiers.acp_scene import PLAIN
from tests.integration.soldiers.file_accesses import note_accesses
from tests.unit.soldiers.launching import a_launch

SESSION = "5e5510a0"


def act(space: Path, home: Path) -> None:
    """Read, write, list and remove files of an agent."""
    add_memory(space, RememberInput(text="Tests need a display."))
    write_result(space, ReportResultInput(status="failed", summary="no", error="no"))
    assert is_unsuccessful(space)
    remove_unsuccessful_result(space)
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    own = find_session_file(environment, SESSION)
    assert own
    assert read_answer(own, "u1") is None
    assert SessionFileTail(environment, SESSION).mentions("toolu_1")
    launch = replace(a_launch(space), environment=environment)
    profile = replace(PLAIN, files={"deep/config": "x"}, conflicting_files="deep/*-$session")
    invocation = prepare_acp_invocation(profile, launch, Price(input=1, output=1), "http://127.0.0.1:1", None)
    move_session_files_aside(profile, invocation, SESSION)
    prepare_command(CommandTemplate(argv=("cat", "$prompt_file")), launch, "a prompt")
    assert changed_files(space, 10)


def read_plainly(space: Path) -> None:
    """Read a result without protection against a link that an agent may have put there."""
    (space / RESULT_FILE).read_text()


if __name__ == "__main__":
    options = json.loads(sys.argv[-1])
    folders = HostFolders(Path(options["directory"]))
    note_accesses(folders.directory, Path(options["notes"]))
    space, home = folders.work_space("general", "wf-1-w1-space1"), folders.home("wf-1")
    if options["plainly"]:
        read_plainly(space)
    else:
        act(space, home)
    say("ready")

"""A process that does what hosts and commands do with files of agents beyond a run of the scripted agent."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from kingdom.cli.attach.files_view import changed_files
from kingdom.soldiers.acp.outfit import outfit, put_aside
from kingdom.soldiers.claude.memory import OwnRecord, own_answer, own_transcript
from kingdom.soldiers.command.command import Command, called
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.result import forget_refusal, is_refusal
from kingdom.soldiers.sandbox.prices import Price
from kingdom.soldiers.voice.calls import Remember, ReportResult
from kingdom.soldiers.voice.report import RESULT, add_memory, write_report
from tests.integration.processes import say
from tests.integration.soldiers.acp_scene import PLAIN
from tests.integration.soldiers.file_accesses import note_accesses
from tests.unit.soldiers.launching import a_launch

SESSION = "5e5510a0"


def act(space: Path, home: Path) -> None:
    """Read, write, list and remove."""
    add_memory(space, Remember(text="Tests need a display."))
    write_report(space, ReportResult(status="failed", summary="no", error="no"))
    assert is_refusal(space)
    forget_refusal(space)
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    own = own_transcript(environment, SESSION)
    assert own
    assert own_answer(own, "u1") is None
    assert OwnRecord(environment, SESSION).tells_of("toolu_1")
    launch = replace(a_launch(space), environment=environment)
    profile = replace(PLAIN, files={"deep/config": "x"}, aside="deep/*-$session")
    fitted = outfit(profile, launch, Price(input=1, output=1), "http://127.0.0.1:1", None)
    put_aside(profile, fitted, SESSION)
    called(Command(argv=("cat", "$prompt_file")), launch, "a prompt")
    assert changed_files(space, 10)


def read_plainly(space: Path) -> None:
    """Read a result as if no agent could put a link there."""
    (space / RESULT).read_text()


if __name__ == "__main__":
    options = json.loads(sys.argv[-1])
    folders = Folders(Path(options["directory"]))
    note_accesses(folders.directory, Path(options["notes"]))
    space, home = folders.space("general", "wf-1-w1-space1"), folders.home("wf-1")
    if options["plainly"]:
        read_plainly(space)
    else:
        act(space, home)
    say("ready")

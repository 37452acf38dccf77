"""A command that is forked from a process with everything in memory behaves like one that was started."""

import os
from pathlib import Path

from tests.acceptance import warm

ENDS = "import atexit\natexit.register(print, 'it ends')\n"
PUBLISH = ("bus", "publish", "--type", "OrderPlaced", "--stream", "orders", "--app")


def environment(directory: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "KINGDOM_DATABASE_URL": f"file:{directory / 'realm'}"}


def test_it_finds_modules_of_its_directory_and_none_of_the_tests(tmp_path: Path) -> None:
    code, _, complaint = warm.run((*PUBLISH, "tests.acceptance.shop:app"), tmp_path, environment(tmp_path))
    assert (code, "there is no module 'tests'" in complaint) == (2, True)


def test_what_is_said_when_the_interpreter_ends_is_heard(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ENDS)
    assert warm.run((*PUBLISH, "shop:app"), tmp_path, environment(tmp_path))[1] == "it ends\n"

"""A command that runs in a fork of the preloaded server behaves like one that runs in a new process."""

import os
import signal
from pathlib import Path

import pytest

from tests import warm

ENDS = "import atexit\natexit.register(print, 'it ends')\n"
PUBLISH = ("bus", "publish", "--type", "OrderPlaced", "--stream", "orders", "--app")


def environment(directory: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "KINGDOM_DATABASE_URL": f"file:{directory / 'realm'}"}


def test_a_command_finds_no_modules_of_the_tests(tmp_path: Path) -> None:
    code, _, complaint = warm.run((*PUBLISH, "tests.acceptance.shop:app"), tmp_path, environment(tmp_path))
    assert (code, "there is no module 'tests'" in complaint) == (2, True)


def test_output_of_exit_handlers_is_captured(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ENDS)
    assert warm.run((*PUBLISH, "shop:app"), tmp_path, environment(tmp_path))[1] == "it ends\n"


async def test_a_program_gets_its_arguments_and_environment_and_returns_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Seoul")
    program = await warm.start("timeit", "-n1", "-r1", "-s", "import os", "print(os.environ['TZ'])", stdout=True)
    assert program.stdout
    assert await program.stdout.readline() == b"Asia/Seoul\n"
    assert await program.wait() == 0
    await program.end()


async def test_a_program_reads_its_input_and_can_be_killed() -> None:
    program = await warm.start("code", "-q", stdin=True, stdout=True)
    assert program.stdout
    program.write(b"print(6 * 7, flush=True)\n")
    assert b"42" in await program.stdout.readline()
    assert program.returncode is None
    program.kill()
    assert await program.wait() == -signal.SIGKILL
    await program.end()

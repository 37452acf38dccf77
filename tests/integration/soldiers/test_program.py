import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.processes import die_with_parent
from kingdom.soldiers.processes import program as running_program
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.soldiers.processes.program import Program, ProgramResult, run_program, start_program
from kingdom.soldiers.redaction import REDACTED, Redaction
from tests.integration.soldiers.processes import MARK, growing_limits, marked, until_runs
from tests.patience import PATIENCE_SECONDS

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
PATIENCE = timedelta(seconds=PATIENCE_SECONDS)

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(params=[pytest.param(True, marks=needs_bubblewrap), False], ids=["contained", "not contained"])
def contained(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def mark() -> str:
    return uuid4().hex


async def shell(
    command: str,
    folder: Path,
    environment: Mapping[str, str] = ENVIRONMENT,
    *,
    contained: bool,
) -> ProgramResult:
    argv = ["/bin/sh", "-c", command]
    return await run_program(argv, cwd=folder, environment=environment, timeout=PATIENCE, contained=contained)


async def start_shell(command: str, folder: Path, mark: str, *, contained: bool) -> Program:
    return await start_program(
        ["/bin/sh", "-c", command],
        cwd=folder,
        environment={**ENVIRONMENT, MARK: mark},
        errors=folder / "errors",
        contained=contained,
    )


async def test_a_run_shows_the_exit_code_and_both_outputs(tmp_path: Path, *, contained: bool) -> None:
    finished = await shell("echo out; echo err >&2; exit 3", tmp_path, contained=contained)
    assert finished == ProgramResult(3, "out\nerr\n")


async def test_a_program_has_only_the_given_environment_and_its_directory(tmp_path: Path, *, contained: bool) -> None:
    argv = ["/usr/bin/env"]
    given = {"ONE": "1", "HOME": "nowhere"}
    finished = await run_program(argv, cwd=tmp_path, environment=given, timeout=PATIENCE, contained=contained)
    assert sorted(finished.output.splitlines()) == sorted(["ONE=1", "HOME=nowhere", f"PWD={tmp_path}"])


async def test_a_program_has_no_input_to_wait_for(tmp_path: Path, *, contained: bool) -> None:
    assert (await shell("cat; echo read", tmp_path, contained=contained)).output == "read\n"


async def test_only_the_last_part_of_a_long_output_is_kept(tmp_path: Path, *, contained: bool) -> None:
    finished = await shell("head -c 5000000 /dev/zero | tr '\\0' x; echo end", tmp_path, contained=contained)
    assert finished.output.endswith("xend\n")
    assert len(finished.output) == 1 << 16


async def test_output_that_is_not_text_is_decoded_as_far_as_possible(tmp_path: Path, *, contained: bool) -> None:
    finished = await shell(r"printf 'a\377b'", tmp_path, contained=contained)
    assert finished.output == "a\N{REPLACEMENT CHARACTER}b"


async def test_a_run_that_takes_too_long_is_killed_and_its_output_is_reported(
    tmp_path: Path, mark: str, *, contained: bool
) -> None:
    # Only the end of the secret is among the last 2000 characters.
    argv = ["/bin/sh", "-c", "printf 'sesame-of-the-door%01995d' 0; sleep 903"]
    given: dict[str, Any] = {"environment": {**ENVIRONMENT, MARK: mark}, "redaction": Redaction(["sesame-of-the-door"])}
    for limit in growing_limits():
        with pytest.raises(ProgramFailed, match=rf"took longer than {limit.total_seconds():g} s ") as failed:
            await run_program(argv, cwd=tmp_path, timeout=limit, contained=contained, **given)
        assert marked(mark) == []
        if str(failed.value).endswith(f"it wrote last: '{REDACTED}{0:01995}'"):
            break


async def test_a_cancelled_run_leaves_no_process(tmp_path: Path, mark: str, *, contained: bool) -> None:
    run = asyncio.create_task(shell("sleep 904", tmp_path, {**ENVIRONMENT, MARK: mark}, contained=contained))
    await until_runs(mark, "sleep 904")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert marked(mark) == []


async def test_processes_in_the_group_end_with_the_program(tmp_path: Path, mark: str, *, contained: bool) -> None:
    environment = {**ENVIRONMENT, MARK: mark}
    assert (await shell("sleep 905 & exit 4", tmp_path, environment, contained=contained)).code == 4
    assert marked(mark) == []


async def test_a_killed_program_leaves_no_process(tmp_path: Path, mark: str, *, contained: bool) -> None:
    program = await start_shell("trap '' TERM INT; sleep 906 & sleep 907", tmp_path, mark, contained=contained)
    await until_runs(mark, "sleep 906")
    await until_runs(mark, "sleep 907")
    assert "SIGKILL" in describe_exit(await program.kill())
    assert marked(mark) == []
    assert not program.running


@needs_bubblewrap
async def test_a_process_that_left_the_group_is_killed_too_if_contained(tmp_path: Path, mark: str) -> None:
    daemon = "setsid sh -c 'setsid sleep 908 & exit 0'; sleep 909"
    program = await start_shell(daemon, tmp_path, mark, contained=True)
    await until_runs(mark, "sleep 908")
    await until_runs(mark, "sleep 909")
    await program.kill()
    assert marked(mark) == []


@needs_bubblewrap
async def test_daemons_end_with_a_contained_program_that_ends_by_itself(tmp_path: Path, mark: str) -> None:
    environment = {**ENVIRONMENT, MARK: mark}
    assert (await shell("setsid sleep 910 & exit 0", tmp_path, environment, contained=True)).code == 0
    assert marked(mark) == []


async def test_waiting_for_a_program_that_is_killed_from_outside_returns_its_signal(
    tmp_path: Path, mark: str, *, contained: bool
) -> None:
    program = await start_shell("sleep 911", tmp_path, mark, contained=contained)
    await until_runs(mark, "sleep 911")
    os.kill(program.pid, signal.SIGKILL)
    assert await asyncio.wait_for(program.wait(), PATIENCE_SECONDS) == -signal.SIGKILL
    assert marked(mark) == []


async def test_killing_an_ended_program_changes_nothing(tmp_path: Path, mark: str, *, contained: bool) -> None:
    program = await start_shell("exit 5", tmp_path, mark, contained=contained)
    assert await asyncio.wait_for(program.wait(), PATIENCE_SECONDS) == 5
    assert await program.kill() == 5


async def test_lines_are_read_however_long_they_are(tmp_path: Path, mark: str, *, contained: bool) -> None:
    long = "head -c 5000000 /dev/zero | tr '\\0' x"
    program = await start_shell(f"echo a; {long}; echo; echo; printf rest", tmp_path, mark, contained=contained)
    lines = [line async for line in program.lines()]
    assert [len(line) for line in lines] == [1, 5_000_000, 0, 4]
    await program.wait()


async def test_a_program_reads_what_is_written_to_it(tmp_path: Path, mark: str, *, contained: bool) -> None:
    program = await start_shell("cat", tmp_path, mark, contained=contained)
    program.write(b"hello\n")
    assert await anext(program.lines()) == b"hello"
    program.close_input()
    assert await asyncio.wait_for(program.wait(), PATIENCE_SECONDS) == 0
    program.write(b"too late\n")


async def test_the_last_output_does_not_include_that_of_an_earlier_program(
    tmp_path: Path, mark: str, *, contained: bool
) -> None:
    for words in ("first", "second"):
        program = await start_shell(f"echo {words} >&2", tmp_path, mark, contained=contained)
        await program.wait()
        assert program.stderr_tail() == words
    assert (tmp_path / "errors").read_text() == "first\nsecond\n"


async def test_a_missing_program_is_named(tmp_path: Path, *, contained: bool) -> None:
    argv = ["no-such-program"]
    finished = await run_program(argv, cwd=tmp_path, environment={}, timeout=PATIENCE, contained=contained)
    assert finished.code != 0
    assert "no-such-program" in finished.output


async def test_a_missing_folder_is_named(tmp_path: Path, *, contained: bool) -> None:
    with pytest.raises(ProgramFailed, match="missing"):
        await shell("true", tmp_path / "missing", contained=contained)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (137, "exit code 137, as after SIGKILL")],
)
def test_an_exit_code_is_described(code: int, words: str) -> None:
    assert describe_exit(code) == words


@pytest.mark.parametrize(
    "argv",
    [[*running_program._WAIT_FOR_LINE], [sys.executable, "-I", "-S", die_with_parent.__file__, "1", ""]],
    ids=["contained", "not contained"],
)
def test_a_program_whose_parent_died_before_it_began_does_not_begin(tmp_path: Path, argv: list[str]) -> None:
    argv = [*argv, "touch", str(tmp_path / "begun")]
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 1
    assert not (tmp_path / "begun").exists()

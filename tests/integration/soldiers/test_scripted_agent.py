import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kingdom.soldiers.agents.port import AgentFailed, AgentGone, AgentMessage, Prompt, TurnAnswer
from kingdom.soldiers.agents.scripted.client import ScriptedAgent, ScriptedAgentClient
from kingdom.soldiers.agents.scripted.session import open_session
from kingdom.soldiers.agents.scripted.turn import ScriptedContext, ScriptedTurn
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.soldiers.processes.program import start_program
from tests.contract.agents.stage import ENVIRONMENT, Stage, follow, until_exists, updates_of
from tests.fakes.scripts import scripted
from tests.integration.soldiers.processes import MARK, cancel_while_it_starts, marked
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def mark() -> str:
    return uuid4().hex


@pytest.fixture
async def stage(tmp_path: Path, mark: str) -> AsyncIterator[Stage]:
    stage = Stage(ScriptedAgentClient(), tmp_path, {**ENVIRONMENT, MARK: mark})
    yield stage
    await stage.close()
    assert marked(mark) == []


def a_turn(folder: Path, environment: Mapping[str, str], *steps: dict[str, Any]) -> ScriptedTurn:
    """Return a turn that runs in this process."""
    session = open_session(folder / "transcript", soldier_id="soldier-1", session=None, model="")
    body = ScriptedContext(work_space=folder, environment=environment, crash=os._exit, block_forever=signal.pause)
    return ScriptedTurn(session, body, Prompt(id="t1#1", text=scripted(*steps)))


async def test_a_file_is_written_into_new_folders_and_appended_to(stage: Stage) -> None:
    agent = await stage.start()
    await follow(agent, {"write": "a/b/c", "text": "zwölf\r\n"}, {"append": "a/b/c", "text": "more"})
    assert (stage.work_space / "a/b/c").read_bytes() == "zwölf\r\nmore".encode()


async def test_a_file_that_cannot_be_written_fails_the_turn(stage: Stage) -> None:
    agent = await stage.start()
    with pytest.raises(AgentFailed, match="could not be written"):
        await follow(agent, {"write": "."})


async def test_a_command_runs_in_the_work_space_and_is_noted_with_its_output(stage: Stage) -> None:
    agent = await stage.start()
    await follow(agent, {"run": "pwd; echo problem >&2"})
    outputs = [entry["output"] for entry in read_entries(stage.transcript) if "output" in entry]
    assert outputs == [f"{stage.work_space}\nproblem\n"]


async def test_an_interrupt_while_a_tool_starts_ends_the_tool(tmp_path: Path, mark: str) -> None:
    turn = a_turn(tmp_path, {**ENVIRONMENT, MARK: mark}, {"run": "sleep 916; true"})

    async def play() -> None:
        async for _ in turn.execute():
            pass

    await cancel_while_it_starts(play(), mark, "sleep 916")
    assert marked(mark) == []


async def test_a_failing_command_fails_the_turn_unless_it_may_fail(stage: Stage) -> None:
    agent = await stage.start()
    assert (await follow(agent, {"run": "exit 4", "may_fail": True}))[-1] == TurnAnswer("done", 0.0)
    with pytest.raises(AgentFailed, match=r"exit code 4: what a pity"):
        await follow(agent, {"run": "echo what a pity; exit 4"})


async def test_tool_output_that_is_not_text_is_decoded_with_replacements(stage: Stage) -> None:
    agent = await stage.start()
    with pytest.raises(AgentFailed, match="a\N{REPLACEMENT CHARACTER}b"):
        await follow(agent, {"run": r"printf 'a\377b'; exit 1"}, prompt_id="t1#1")
    assert (await follow(agent, prompt_id="t1#2"))[-1] == TurnAnswer("done", 0.0)


async def test_a_tool_has_exactly_the_environment_of_the_launch(stage: Stage, mark: str) -> None:
    agent = await stage.start()
    await follow(agent, {"run": "/usr/bin/env > env.txt"})
    given = {**ENVIRONMENT, MARK: mark, "PWD": str(stage.work_space)}
    lines = (stage.work_space / "env.txt").read_text().splitlines()
    assert dict(line.split("=", 1) for line in lines) == given


async def test_a_tool_has_a_session_of_its_own(stage: Stage) -> None:
    agent = await stage.start()
    await follow(agent, {"run": "cut -d' ' -f1,6 /proc/$$/stat > ids"})
    pid, session = (stage.work_space / "ids").read_text().split()
    assert pid == session


async def test_a_stream_of_text_arrives_word_by_word_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    turn = a_turn(tmp_path, ENVIRONMENT, {"stream": "one two  three", "every": 60})
    reported = [update async for update in turn.execute()]
    assert reported == [AgentMessage("one "), AgentMessage("two  "), AgentMessage("three"), TurnAnswer("done", 0.0)]
    assert pauses == [60, 60, 60]


async def test_a_step_waits_for_a_file(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"write": "began"}, {"wait_for": "go"}))
    await until_exists(stage.work_space / "began")
    assert not turn.done()
    (stage.work_space / "go").touch()
    assert (await turn)[-1] == TurnAnswer("done", 0.0)


async def test_five_megabytes_in_a_line_come_through_both_ways(stage: Stage) -> None:
    agent = await stage.start()
    text = "x" * 5_000_000
    assert await follow(agent, {"say": text}, {"answer": text}) == [AgentMessage(text), TurnAnswer(text, 0.0)]
    assert (await stage.client.inspect(stage.launch(), "w1-t1#1")).text == text


async def test_modules_in_the_work_space_are_not_taken_for_kingdom_or_python(stage: Stage) -> None:
    for name in ("kingdom", "asyncio", "msgspec"):
        (stage.work_space / f"{name}.py").write_text("raise SystemExit('this is foreign code')")
    agent = await stage.start()
    assert (await follow(agent))[-1] == TurnAnswer("done", 0.0)


async def test_an_agent_that_does_not_start_reports_why(stage: Stage) -> None:
    stage.transcript.mkdir()
    with pytest.raises(AgentGone, match=r"its transcript cannot be written: .*Is a directory"):
        await stage.start()


async def test_an_agent_whose_transcript_cannot_be_written_any_more_ends_and_says_why(stage: Stage) -> None:
    agent = await stage.start()
    stage.transcript.unlink()
    stage.transcript.mkdir()
    with pytest.raises(AgentGone, match=r"SIGKILL, since its transcript cannot be written: .*Is a directory"):
        await follow(agent, {"write": "a.txt", "text": "never"})
    assert not (stage.work_space / "a.txt").exists()


@pytest.mark.parametrize("rounds", range(5))
async def test_a_start_that_is_given_up_early_leaves_no_process(stage: Stage, mark: str, rounds: int) -> None:
    starting = asyncio.create_task(stage.client.start(stage.launch()))
    for _ in range(rounds):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert marked(mark) == []


async def test_an_agent_that_leaves_an_incomplete_line_is_continued(stage: Stage) -> None:
    agent = await stage.start()
    steps = ({"append": "log", "text": "a"}, {"crash": 1, "first_time_only": True}, {"append": "log", "text": "b"})
    with pytest.raises(AgentGone):
        await follow(agent, *steps, prompt_id="t1#1")
    with stage.transcript.open("ab") as file:
        file.write(b'{"prompt": "t1#1", "st')
    again = await stage.start(agent.session)
    await updates_of(again, Prompt(id="t1#2", text="go on", continues=True))
    assert (stage.work_space / "log").read_text() == "ab"


NONSENSE = {
    "no message": """printf '{}'""",
    "no text": r"""printf '{"type":"Ready","session":"\377"}'""",
    "too deep": r"""printf '{"type":"Ready","other":'; head -c 100000 /dev/zero | tr '\0' '['""",
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
async def test_an_agent_that_writes_invalid_lines_is_killed(stage: Stage, mark: str, nonsense: str) -> None:
    say_it = f"{nonsense}; echo; sleep 914"
    program = await start_program(
        ["/bin/sh", "-c", say_it], cwd=stage.work_space, environment={**ENVIRONMENT, MARK: mark}, errors=stage.errors
    )
    agent = ScriptedAgent(program, lambda _: None)
    with pytest.raises(AgentGone, match="SIGKILL"):
        await asyncio.wait_for(agent.wait_until_ready(), PATIENCE_SECONDS)
    assert marked(mark) == []

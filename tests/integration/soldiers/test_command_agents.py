"""Programs that take one prompt and end, as agents."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from kingdom.errors import Misconfigured
from kingdom.soldiers.agents.command.client import CommandAgentClient
from kingdom.soldiers.agents.command.command import CommandTemplate
from kingdom.soldiers.agents.port import AgentFailed, AgentGone, AgentMessage, Prompt, TurnAnswer, TurnQuestion
from kingdom.soldiers.redaction import REDACTED, Redaction
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.soldiers.turns.result import apply_reported_status
from kingdom.workflow.model.messages.answers import TranscriptFinding
from tests.contract.agents.stage import A_WHILE, AT_ONCE, ENVIRONMENT, Stage, until_exists, updates_of
from tests.integration.soldiers.processes import MARK, marked, until_none, until_runs
from tests.patience import PATIENCE_SECONDS

# A shell that executes its prompt.
SHELL = CommandTemplate(argv=("/bin/sh", "-e", "-s"), cost=r"it cost \$([0-9.]+)")


@pytest.fixture
def mark() -> str:
    return uuid4().hex


@pytest.fixture
async def stage(tmp_path: Path, mark: str) -> AsyncIterator[Stage]:
    stage = Stage(CommandAgentClient(SHELL), tmp_path, {**ENVIRONMENT, MARK: mark})
    yield stage
    await stage.close()
    assert not marked(mark)


def staged(folder: Path, *argv: str) -> Stage:
    return Stage(CommandAgentClient(CommandTemplate(argv=argv)), folder)


async def test_output_of_the_program_is_reported_line_by_line_and_is_the_answer(stage: Stage) -> None:
    agent = await stage.start()
    updates = await updates_of(agent, Prompt(id="t1#1", text="echo one; echo two; printf three > file"))
    assert updates == [AgentMessage("one\n"), AgentMessage("two\n"), TurnAnswer("one\ntwo", 0.0)]
    assert (stage.work_space / "file").read_text() == "three"
    found = await stage.client.inspect(stage.launch(), "t1#1")
    assert (found.finding, found.text) == (TranscriptFinding.ANSWERED, "one\ntwo")


async def test_the_prompt_may_be_an_argument_that_no_shell_interprets(tmp_path: Path) -> None:
    stage = staged(tmp_path, "printf", "%s of %s", "--prompt=$prompt", "$model")
    agent = await stage.start()
    updates = await updates_of(agent, Prompt(id="t1#1", text="; touch broken; $(touch broken) $model"))
    assert updates[-1] == TurnAnswer("--prompt=; touch broken; $(touch broken) $model of free", 0.0)
    await agent.stop(AT_ONCE)
    assert not (stage.work_space / "broken").exists()


async def test_the_prompt_may_be_a_file_of_any_length(tmp_path: Path) -> None:
    stage = staged(tmp_path, "wc", "-c", "$prompt_file")
    agent = await stage.start()
    updates = await updates_of(agent, Prompt(id="t1#1", text="x" * 300_000))
    assert isinstance(updates[-1], TurnAnswer)
    assert updates[-1].text.startswith("300000 ")
    await agent.stop(AT_ONCE)


async def test_the_amounts_that_the_program_prints_are_the_cost(stage: Stage) -> None:
    agent = await stage.start()
    updates = await updates_of(agent, Prompt(id="t1#1", text="echo 'it cost $0.25'; echo 'it cost $0.5'"))
    assert updates[-1] == TurnAnswer("it cost $0.25\nit cost $0.5", 0.75)
    with pytest.raises(AgentFailed) as caught:
        await updates_of(agent, Prompt(id="t2#1", text="echo 'it cost $0.1'; exit 1"))
    assert caught.value.cost_usd == 0.1
    assert (await stage.client.inspect(stage.launch(), "t2#1")).cost_usd == 0.1


async def test_a_program_that_fails_shows_its_code_and_its_last_output_and_the_next_prompt_is_taken(
    stage: Stage,
) -> None:
    agent = await stage.start()
    with pytest.raises(AgentFailed, match=r"(?s)exit code 3: I tried\.\nno access"):
        await updates_of(agent, Prompt(id="t1#1", text="echo I tried.; echo no access >&2; exit 3"))
    assert (await stage.client.inspect(stage.launch(), "t1#1")).finding is TranscriptFinding.UNFINISHED
    assert (await updates_of(agent, Prompt(id="t1#2", text="echo better")))[-1] == TurnAnswer("better", 0.0)


async def test_only_the_end_of_a_long_output_is_kept_but_every_cost_counts(stage: Stage) -> None:
    agent = await stage.start()
    flood = "for n in $(seq 100); do printf '%100000s' .; echo 'it cost $0.5'; done"
    turn = agent.send(Prompt(id="t1#1", text=flood))
    tracemalloc.start()
    try:
        [last] = [update async for update in turn if isinstance(update, TurnAnswer)]
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert (last.text, last.cost_usd) == (".it cost $0.5", 50.0)


async def test_the_end_of_a_long_output_does_not_begin_with_the_end_of_a_secret(stage: Stage) -> None:
    agent = await stage.start(redaction=Redaction(["sesame-of-the-door"]))
    (*_, last) = await updates_of(agent, Prompt(id="t1#1", text="printf 'sesame-of-the-door%063994d' 0"))
    assert isinstance(last, TurnAnswer)
    assert last.text == f"{REDACTED}{0:063994}\n".strip()


async def test_a_transcript_that_cannot_be_written_fails_only_this_turn_and_keeps_its_cost(stage: Stage) -> None:
    agent = await stage.start()
    transcript = stage.launch().transcript
    kept = transcript.with_suffix(".kept")
    work = f"echo 'it cost $0.25'; mv {transcript} {kept}; mkdir {transcript}"
    with pytest.raises(AgentFailed, match="the transcript cannot be written") as caught:
        await updates_of(agent, Prompt(id="t1#1", text=work))
    assert caught.value.cost_usd == 0.25
    transcript.rmdir()
    kept.rename(transcript)
    assert (await updates_of(agent, Prompt(id="t1#2", text="echo next")))[-1] == TurnAnswer("next", 0.0)


async def test_the_result_file_decides_how_the_turn_ends(stage: Stage) -> None:
    agent = await stage.start()
    report = {"status": "needs_human", "summary": "I wonder", "question": "Which?", "choices": ["x"]}
    updates = await updates_of(agent, Prompt(id="t1#1", text=f"echo fine; echo '{json.dumps(report)}' > result.json"))
    assert isinstance(updates[-1], TurnAnswer)
    assert apply_reported_status(updates[-1], stage.work_space) == TurnQuestion("Which?", ("x",), 0.0)


async def test_a_new_attempt_gets_the_whole_prompt_and_a_note_about_the_earlier_attempt(stage: Stage) -> None:
    agent = await stage.start()
    work = "echo a >> log; test -e ready || sleep 600; cat log; exit"
    turn = asyncio.create_task(updates_of(agent, Prompt(id="t1#1", text=work)))
    await until_exists(stage.work_space / "log")
    await agent.stop(AT_ONCE)
    with pytest.raises(AgentGone, match="SIGKILL"):
        await turn
    assert (await stage.client.inspect(stage.launch(agent.session), "t1#1")).finding is TranscriptFinding.UNFINISHED
    reading = Stage(CommandAgentClient(CommandTemplate(argv=("cat",))), stage.work_space.parent)
    again = await reading.start(agent.session)
    updates = await updates_of(again, Prompt(id="t1#2", text="go on", continues=True))
    await again.stop(AT_ONCE)
    assert isinstance(updates[-1], TurnAnswer)
    assert "An earlier attempt" in updates[-1].text
    assert updates[-1].text.endswith(work)
    assert again.session == agent.session


async def test_the_reply_of_a_person_is_sent_with_the_original_prompt(tmp_path: Path) -> None:
    stage = staged(tmp_path, "cat")
    agent = await stage.start()
    updates = await updates_of(agent, Prompt(id="t1#1", text="Choose one.", reply="the first"))
    assert updates[-1] == TurnAnswer("Choose one.\n\nA person has replied: the first", 0.0)
    await agent.stop(AT_ONCE)


async def test_an_unknown_session_cannot_be_continued(stage: Stage) -> None:
    with pytest.raises(AgentGone, match="cannot be continued"):
        await stage.start("unheard-of")


async def test_an_interrupt_ends_the_turn_and_everything_that_it_started(stage: Stage, mark: str) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(updates_of(agent, Prompt(id="t1#1", text="setsid sleep 600 & sleep 600")))
    await until_runs(mark, "sleep 600")
    await agent.interrupt()
    with pytest.raises(AgentFailed, match="interrupted"):
        await asyncio.wait_for(turn, PATIENCE_SECONDS)
    await until_none(mark)
    assert (await updates_of(agent, Prompt(id="t2#1", text="echo next")))[-1] == TurnAnswer("next", 0.0)


async def test_closing_the_updates_ends_the_program(stage: Stage, mark: str) -> None:
    agent = await stage.start()
    updates = agent.send(Prompt(id="t1#1", text="echo hello; sleep 600"))
    assert await anext(updates) == AgentMessage("hello\n")
    await updates.aclose()
    await until_none(mark)
    assert (await stage.client.inspect(stage.launch(), "t1#1")).finding is TranscriptFinding.UNFINISHED


async def test_a_second_prompt_during_a_turn_is_refused(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(updates_of(agent, Prompt(id="t1#1", text="touch began; read nothing || sleep 600")))
    await until_exists(stage.work_space / "began")
    with pytest.raises(AgentFailed, match=r"t2#1 .* busy with t1#1"):
        await updates_of(agent, Prompt(id="t2#1", text="true"))
    await agent.interrupt()
    with pytest.raises(AgentFailed):
        await turn


async def test_a_stop_waits_for_the_program_during_the_grace_period(stage: Stage) -> None:
    agent = await stage.start()
    waits = "touch began; while ! test -e go; do sleep 0.02; done; echo in time"
    turn = asyncio.create_task(updates_of(agent, Prompt(id="t1#1", text=waits)))
    await until_exists(stage.work_space / "began")
    stop = asyncio.create_task(agent.stop(A_WHILE))
    await asyncio.sleep(0)
    (stage.work_space / "go").touch()
    assert (await asyncio.wait_for(turn, PATIENCE_SECONDS))[-1] == TurnAnswer("in time", 0.0)
    await asyncio.wait_for(stop, PATIENCE_SECONDS)
    assert await agent.wait_for_end() == "exit code 0"
    with pytest.raises(AgentGone):
        await updates_of(agent, Prompt(id="t2#1", text="true"))


async def test_a_stop_kills_a_turn_that_runs_longer_than_the_grace_period(stage: Stage, mark: str) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(updates_of(agent, Prompt(id="t1#1", text="touch began; sleep 600")))
    await until_exists(stage.work_space / "began")
    await asyncio.wait_for(agent.stop(timedelta(milliseconds=50)), PATIENCE_SECONDS)
    assert not marked(mark)
    with pytest.raises(AgentGone, match="SIGKILL"):
        await asyncio.wait_for(turn, PATIENCE_SECONDS)
    assert "SIGKILL" in await agent.wait_for_end()


async def test_a_missing_program_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no program 'not-there'"):
        await staged(tmp_path, "not-there").start()


async def test_the_program_runs_in_the_sandbox_of_the_launch(stage: Stage, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    agent = await stage.start(sandbox=Sandbox(profile=SandboxProfile.STRICT, writable=(stage.work_space,)))
    updates = await updates_of(agent, Prompt(id="t1#1", text=f"id -u; cat {secret} || echo cannot see it"))
    assert updates[-1] == TurnAnswer("1000\ncannot see it", 0.0)

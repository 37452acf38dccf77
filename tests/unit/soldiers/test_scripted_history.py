from pathlib import Path

import pytest

from kingdom.soldiers.agents.port import AgentFailed, Prompt, TurnAnswer, TurnUpdate
from kingdom.soldiers.agents.scripted.session import ScriptedSession, open_session
from kingdom.soldiers.agents.scripted.turn import ScriptedContext, ScriptedTurn
from tests.fakes.scripts import scripted


def no_end(*_: object) -> None:
    raise AssertionError("no test here ends its agent")


class Player:
    """Runs turns and keeps only the transcript between them."""

    def __init__(self, folder: Path) -> None:
        self.body = ScriptedContext(work_space=folder, environment={}, crash=no_end, block_forever=no_end)
        self.transcript = folder / "soldier-1-1.json"
        self.session = self.open(None).id

    def open(self, session: str | None) -> ScriptedSession:
        return open_session(self.transcript, soldier_id="soldier-1-1", session=session, model="free", durable=False)

    async def play(self, prompt: Prompt) -> TurnUpdate:
        turn = ScriptedTurn(self.open(self.session), self.body, prompt)
        return [update async for update in turn.execute()][-1]

    async def answer(self, prompt_id: str, text: str = "Write the report.\nIn full.") -> str:
        last = await self.play(Prompt(id=prompt_id, text=text))
        assert isinstance(last, TurnAnswer)
        return last.text


@pytest.fixture
def player(tmp_path: Path) -> Player:
    return Player(tmp_path)


async def test_a_prompt_without_a_script_is_answered_with_its_first_line(player: Player) -> None:
    assert await player.answer("t1#1", "\nFix it.\nSoon.") == "I was asked: Fix it."


async def test_a_report_waits_for_the_next_prompt_without_a_script(player: Player) -> None:
    assert await player.answer("t1#1", scripted({"report": "# Findings"}, {"answer": "ok"})) == "ok"
    assert await player.answer("t1-report#1") == "# Findings"


async def test_only_the_attempts_at_one_report_get_the_report_text(player: Player) -> None:
    await player.answer("t1#1", scripted({"report": "# Findings"}))
    assert await player.answer("t1-report#1") == "# Findings"
    assert await player.answer("t1-report#2") == "# Findings"
    assert await player.answer("t2#1", "Something else") == "I was asked: Something else"


async def test_a_later_report_replaces_an_earlier_one(player: Player) -> None:
    await player.answer("t1#1", scripted({"report": "# One"}))
    await player.answer("t2#1", scripted({"report": "# Two"}))
    assert await player.answer("t2-report#1") == "# Two"


async def test_a_report_of_an_earlier_session_is_forgotten(player: Player) -> None:
    await player.answer("t1#1", scripted({"report": "# Findings"}))
    player.session = player.open(None).id
    assert await player.answer("t1-report#1", "Report!") == "I was asked: Report!"


async def test_the_chosen_answer_survives_a_failure_after_it(player: Player) -> None:
    steps = ({"answer": "chosen"}, {"fail": "once", "first_time_only": True})
    with pytest.raises(AgentFailed):
        await player.answer("t1#1", scripted(*steps))
    assert await player.play(Prompt(id="t1#2", text="go on", continues=True)) == TurnAnswer("chosen", 0.0)


async def test_a_chain_of_attempts_continues_with_the_first_script(player: Player, tmp_path: Path) -> None:
    text = scripted(
        {"append": "log", "text": "a"},
        {"fail": "first", "first_time_only": True},
        {"append": "log", "text": "b"},
        {"fail": "second", "first_time_only": True},
        {"append": "log", "text": "c"},
    )
    for attempt in (1, 2):
        with pytest.raises(AgentFailed):
            await player.play(Prompt(id=f"t1#{attempt}", text=text, continues=attempt > 1))
    assert await player.play(Prompt(id="t1#3", text=text, continues=True)) == TurnAnswer("done", 0.0)
    assert (tmp_path / "log").read_text() == "abc"


async def test_later_attempts_use_the_reply_to_an_earlier_one(player: Player) -> None:
    text = scripted({"ask": "Which?"}, {"fail": "once", "first_time_only": True}, {"answer": "so {reply}"})
    await player.play(Prompt(id="t1#1", text=text))
    with pytest.raises(AgentFailed):
        await player.play(Prompt(id="t1#2", text=text, reply="x"))
    assert await player.play(Prompt(id="t1#3", text=text, continues=True)) == TurnAnswer("so x", 0.0)


async def test_a_finished_script_is_not_continued(player: Player) -> None:
    assert await player.answer("t1#1", scripted({"answer": "one"})) == "one"
    prompt = Prompt(id="t2#1", text=scripted({"answer": "two"}), continues=True)
    assert await player.play(prompt) == TurnAnswer("two", 0.0)


async def test_a_malformed_script_fails_the_turn_with_the_line(player: Player) -> None:
    with pytest.raises(AgentFailed, match="line 1 of the script"):
        await player.answer("t1#1", "```script\nnonsense\n```")

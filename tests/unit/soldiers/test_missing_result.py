"""An agent that ends its turn without a result is asked for it once."""

import json
from pathlib import Path

import pytest

from kingdom.soldiers.agent_tools.result_file import RESULT_FILE
from kingdom.soldiers.agents.port import AgentFailed, AgentGone, Prompt, TurnAnswer, TurnQuestion
from kingdom.soldiers.turns.missing_result import RESULT_REQUEST, request_missing_result

PROMPT = Prompt(id="w1-t1#1", text="Do it.", budget_usd=2.0)
ANSWERED = TurnAnswer("I am done.", 0.5)


class AgentAskedAgain:
    """An agent in its second turn: if it `reports`, it writes a result; then the turn ends with `end`."""

    def __init__(self, space: Path, end: TurnAnswer | TurnQuestion | AgentFailed | AgentGone, *, reports: bool) -> None:
        self.prompts: list[Prompt] = []
        self._file = space / RESULT_FILE
        self._end = end
        self._reports = reports

    async def __call__(self, prompt: Prompt) -> TurnAnswer | TurnQuestion:
        self.prompts.append(prompt)
        if self._reports:
            self._file.write_text(json.dumps({"status": "success", "summary": "all good"}))
        if isinstance(self._end, Exception):
            raise self._end
        return self._end


async def test_an_agent_with_a_result_is_not_asked_again(tmp_path: Path) -> None:
    (tmp_path / RESULT_FILE).write_text(json.dumps({"status": "failed", "summary": "no", "error": "no"}))
    agent = AgentAskedAgain(tmp_path, TurnAnswer("again", 1.0), reports=False)
    assert await request_missing_result(PROMPT, ANSWERED, tmp_path, agent) == ANSWERED
    assert agent.prompts == []


async def test_an_agent_that_asked_a_question_is_not_asked_for_a_result(tmp_path: Path) -> None:
    agent = AgentAskedAgain(tmp_path, TurnAnswer("again", 1.0), reports=False)
    asked = TurnQuestion("Which one?", (), 0.5)
    assert await request_missing_result(PROMPT, asked, tmp_path, agent) == asked
    assert agent.prompts == []


async def test_an_agent_without_a_result_is_asked_once_and_its_first_answer_counts(tmp_path: Path) -> None:
    agent = AgentAskedAgain(tmp_path, TurnAnswer("Reported.", 0.25), reports=True)
    assert await request_missing_result(PROMPT, ANSWERED, tmp_path, agent) == TurnAnswer("I am done.", 0.75)
    assert agent.prompts == [Prompt(id="w1-t1#1", text=RESULT_REQUEST, budget_usd=1.5)]


async def test_an_agent_that_never_reports_has_failed_and_its_cost_is_that_of_both_turns(tmp_path: Path) -> None:
    agent = AgentAskedAgain(tmp_path, TurnAnswer("I am really done.", 0.25), reports=False)
    with pytest.raises(AgentFailed, match="without a result") as failed:
        await request_missing_result(PROMPT, ANSWERED, tmp_path, agent)
    assert failed.value.cost_usd == 0.75
    assert agent.prompts == [Prompt(id="w1-t1#1", text=RESULT_REQUEST, budget_usd=1.5)]


async def test_an_agent_that_is_asked_for_a_result_may_ask_a_person_instead(tmp_path: Path) -> None:
    agent = AgentAskedAgain(tmp_path, TurnQuestion("Which one?", ("a",), 0.25), reports=False)
    assert await request_missing_result(PROMPT, ANSWERED, tmp_path, agent) == TurnQuestion("Which one?", ("a",), 0.75)


@pytest.mark.parametrize("failure", [AgentFailed("no model", 0.25), AgentGone("killed", 0.25)])
async def test_the_failure_of_the_second_turn_has_the_cost_of_both_turns(
    tmp_path: Path, failure: AgentFailed | AgentGone
) -> None:
    agent = AgentAskedAgain(tmp_path, failure, reports=False)
    with pytest.raises(type(failure)) as failed:
        await request_missing_result(PROMPT, ANSWERED, tmp_path, agent)
    assert failed.value.cost_usd == 0.75

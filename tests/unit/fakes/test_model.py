"""Which response the script in a conversation asks for next."""

from typing import Any

import pytest

from tests.fakes.model.answer import ModelAnswer
from tests.fakes.model.conversation import Entry, ModelEntry, PromptEntry, Request, ToolCallEntry, ToolResultEntry
from tests.fakes.model.model import Model
from tests.fakes.model.prices import usage_for
from tests.fakes.scripts import scripted

CLAUDE = dict.fromkeys(("Bash", "Write"))


class Conversation:
    """An agent that does whatever the model asks for."""

    def __init__(self, *tools: str, **options: Any) -> None:
        self.model = Model()
        self.entries: list[Entry] = []
        self._options = {"tools": dict.fromkeys(tools) or CLAUDE, "folder": "/space", "session": "s1", **options}

    def prompt(self, *steps: dict[str, Any]) -> ModelAnswer:
        return self.say(scripted(*steps))

    def say(self, text: str) -> ModelAnswer:
        self.entries.append(PromptEntry(text))
        return self.next()

    def next(self) -> ModelAnswer:
        request = Request(model="free", stream=True, entries=self.entries, **self._options)
        answer = self.model.answer(request)
        if answer.refusal is None:
            self.entries += [ModelEntry(text.words) for text in answer.texts]
        if answer.call is not None:
            self.entries.append(ToolCallEntry(answer.call.id))
        return answer

    def returned(self, answer: ModelAnswer, text: str = "", *, is_error: bool = False) -> ModelAnswer:
        assert answer.call is not None
        self.entries.append(ToolResultEntry(answer.call.id, text, is_error=is_error))
        return self.next()


def words(answer: ModelAnswer) -> list[str]:
    return [text.words for text in answer.texts]


def tool(answer: ModelAnswer) -> tuple[str, Any]:
    assert answer.call is not None
    return answer.call.tool, dict(answer.call.arguments)


def test_text_before_a_tool_is_in_the_same_response() -> None:
    agent = Conversation()
    first = agent.prompt({"say": "a"}, {"say": "b"}, {"write": "x/y", "text": "t"}, {"say": "c"}, {"answer": "d"})
    assert words(first) == ["a", "b"]
    assert tool(first) == ("Write", {"file_path": "/space/x/y", "content": "t"})
    last = agent.returned(first)
    assert (words(last), last.call) == (["c", "d"], None)


@pytest.mark.parametrize(
    ("offered", "called", "argument"),
    [
        ("Bash", "Bash", {"command": "ls", "description": "ls"}),
        ("bash", "bash", {"command": "ls", "description": "ls"}),
        ("run_shell_command", "run_shell_command", {"command": "ls", "description": "ls"}),
        ("shell_command", "shell_command", {"command": "ls"}),
        ("shell", "shell", {"command": ["bash", "-lc", "ls"]}),
    ],
)
def test_a_command_goes_to_the_shell_that_is_offered(offered: str, called: str, argument: dict[str, Any]) -> None:
    assert tool(Conversation(offered).prompt({"run": "ls"})) == (called, argument)


@pytest.mark.parametrize(
    ("step", "called", "arguments"),
    [
        ({"petition": "github.comment", "body": {"a": 1}}, "petition", {"kind": "github.comment", "body": {"a": 1}}),
        ({"ask": "Which?", "choices": ["x"]}, "ask_human", {"question": "Which?", "choices": ["x"]}),
        ({"result": {"status": "success"}}, "report_result", {"status": "success"}),
        ({"remember": "it rains"}, "remember", {"text": "it rains"}),
        ({"call": "house_petition", "args": {"b": 2}}, "petition", {"b": 2}),
    ],
)
def test_calls_of_our_tools_go_to_the_tool_server(step: dict[str, Any], called: str, arguments: dict[str, Any]) -> None:
    assert tool(Conversation(own_tool_name="house_{}").prompt(step)) == (f"house_{called}", arguments)


def test_without_a_tool_for_files_the_shell_writes_them() -> None:
    answer = Conversation("bash").prompt({"write": "a b/c", "text": "it's"})
    assert tool(answer)[1]["command"] == """mkdir -p 'a b' && printf %s 'it'"'"'s' > 'a b/c'"""


def test_a_file_that_may_not_be_written_is_written_by_the_shell() -> None:
    agent = Conversation()
    refused = agent.returned(agent.prompt({"write": "a"}, {"answer": "b"}), "has not been read yet", is_error=True)
    assert tool(refused)[0] == "Bash"
    assert words(agent.returned(refused)) == ["b"]


def test_a_command_that_fails_fails_the_turn_and_is_run_again_later() -> None:
    agent = Conversation()
    failed = agent.returned(agent.prompt({"run": "false"}), "exit code 1", is_error=True)
    assert failed.refusal is not None
    assert (failed.refusal.status, failed.refusal.message) == (400, "'false' failed: exit code 1")
    assert tool(agent.say("go on"))[1]["command"] == "false"


def test_a_command_that_may_fail_is_done_when_it_has_failed() -> None:
    agent = Conversation()
    assert words(agent.returned(agent.prompt({"run": "false", "may_fail": True}), "1", is_error=True)) == ["done"]


def test_a_tool_that_was_stopped_is_called_again_without_repeating_the_text() -> None:
    agent = Conversation()
    waiting = agent.prompt({"say": "I wait."}, {"wait_for": "go"}, {"answer": "gone"})
    agent.entries.append(
        ToolResultEntry(waiting.call.id if waiting.call else "", "[Request interrupted by user for tool use]")
    )
    again = agent.say("go on")
    assert (words(again), tool(again)) == ([], tool(waiting))
    assert words(agent.returned(again)) == ["gone"]


def test_a_tool_whose_call_is_missing_in_the_conversation_is_called_again() -> None:
    agent = Conversation()
    first = agent.prompt({"append": "log", "text": "a"}, {"wait_for": "go"})
    agent.returned(first)
    agent.entries.pop()
    agent.entries.append(ModelEntry("No response requested."))
    assert "go" in tool(agent.say("go on"))[1]["command"]


def test_a_question_waits_for_a_reply_and_is_asked_again_without_one() -> None:
    agent = Conversation()
    asked = agent.prompt({"ask": "Which?"}, {"answer": "so {reply}"})
    assert words(agent.returned(asked)) == ["I wait for the reply."]
    again = agent.say("go on")
    assert tool(again) == tool(asked)
    agent.returned(again)
    assert words(agent.say("y")) == ["so y"]


def test_a_reply_is_remembered_when_the_script_continues_later() -> None:
    agent = Conversation()
    agent.returned(agent.prompt({"ask": "Which?"}, {"wait_for": "go"}, {"answer": "so {reply}"}))
    agent.say("y")
    assert words(agent.returned(agent.say("go on"))) == ["so y"]


@pytest.mark.parametrize("prompt", ["The reply: y", "Once more.\n\nA person has replied: y", "y\n"])
def test_the_reply_is_the_text_of_the_newest_prompt(prompt: str) -> None:
    agent = Conversation()
    agent.returned(agent.prompt({"ask": "Which?"}, {"answer": "so {reply}"}))
    assert words(agent.say(prompt)) == ["so y"]


def test_a_script_may_come_together_with_a_reply() -> None:
    prompt = f"{scripted({'answer': 'so {reply}'})}\n\nA person has replied: y"
    assert words(Conversation().say(prompt)) == ["so y"]


def test_a_prompt_that_continues_does_not_restart_its_script() -> None:
    agent = Conversation()
    steps = ({"append": "log", "text": "a"}, {"run": "ls"})
    agent.returned(agent.prompt(*steps))
    assert tool(agent.say(scripted(*steps, text="Go on with this.")))[1]["command"] == "ls"
    assert words(agent.say(scripted({"answer": "other"}, text="Go on with that."))) == ["other"]
    assert "log" in tool(agent.prompt(*steps))[1]["command"]


def test_after_its_end_a_script_reports_once() -> None:
    agent = Conversation()
    agent.prompt({"answer": "yes"}, {"report": "a fine day"})
    assert words(agent.say("Report.")) == ["a fine day"]
    assert words(agent.say("And now?\nSpeak.")) == ["I was asked: And now?"]


def test_a_first_time_step_happens_once_in_a_session() -> None:
    agent = Conversation()
    steps = ({"fail": "once", "first_time_only": True}, {"answer": "well"})
    refused = agent.prompt(*steps).refusal
    assert refused is not None
    assert refused.message == "once"
    assert words(agent.prompt(*steps)) == ["well"]
    other = Conversation(session="s2")
    other.model = agent.model
    assert other.prompt(*steps).refusal is not None


def test_an_error_is_returned_the_scripted_number_of_times_with_its_headers() -> None:
    agent = Conversation()
    error = {"model_error": 429, "times": 2, "retry_after": 7, "headers": {"x-reset": 5}, "message": "slowly"}
    moves = [agent.prompt(error), agent.next(), agent.next()]
    refusals = [answer.refusal for answer in moves]
    assert [refusal and refusal.status for refusal in refusals] == [429, 429, None]
    assert refusals[0] is not None
    assert dict(refusals[0].headers) == {"retry-after": "7", "x-reset": "5"}
    assert refusals[0].message == "slowly"


@pytest.mark.parametrize("end", [{"fail": "no"}, {"hang": True}, {"model_error": 500}])
def test_the_scripted_cost_is_sent_before_an_end_without_usage(end: dict[str, Any]) -> None:
    agent = Conversation()
    spending = agent.prompt({"cost": 0.5}, end)
    assert tool(spending)[1]["command"] == "true"
    assert spending.usage == usage_for(0.5, "free")
    ended = agent.returned(spending)
    assert ended.hangs or ended.refusal is not None


def test_a_first_time_error_occurs_after_the_scripted_cost() -> None:
    agent = Conversation()
    spending = agent.prompt({"cost": 0.5}, {"fail": "no", "first_time_only": True})
    assert agent.returned(spending).refusal is not None
    assert words(agent.say("go on")) == ["done"]


def test_a_response_hangs_after_the_scripted_text() -> None:
    answer = Conversation().prompt({"say": "hello"}, {"hang": True})
    assert (words(answer), answer.hangs, answer.call) == (["hello"], True, None)


def test_a_wrong_script_is_an_error_that_names_the_line() -> None:
    refusal = Conversation().prompt({"dance": 1}).refusal
    assert refusal is not None
    assert '{"dance": 1}' in refusal.message


def test_a_script_with_escaped_quotes_is_read() -> None:
    prompt = scripted({"say": "a"}, {"answer": "b"}).replace('"', '\\"')
    assert words(Conversation().say(prompt)) == ["a", "b"]


@pytest.mark.parametrize("cost", [0.0, 0.0001, 0.25, 0.48, 0.481, 1.0, 12.3456])
@pytest.mark.parametrize(("model", "usd"), [("claude-sonnet-4-5-20250929", 3.0), ("free", 4.0)])
def test_usage_costs_the_scripted_amount_and_does_not_fill_the_conversation(
    cost: float, model: str, usd: float
) -> None:
    usage = usage_for(cost, model)
    searches = usage.get("server_tool_use", {}).get("web_search_requests", 0)
    assert usage["input_tokens"] * usd / 1_000_000 + searches / 100 == pytest.approx(cost, abs=1e-5)
    assert 0 <= usage["input_tokens"] <= 120_000

from typing import Any

import pytest

from kingdom.soldiers.agents.port import AgentFailed
from kingdom.soldiers.agents.scripted import script
from kingdom.soldiers.agents.scripted.script import parse_script
from tests.fakes.scripts import scripted

STEPS: list[tuple[dict[str, Any], script.ScriptStep]] = [
    ({"write": "a/b", "text": "t"}, script.WriteStep(write="a/b", text="t")),
    ({"append": "a/b", "text": "t"}, script.AppendStep(append="a/b", text="t")),
    ({"run": "true", "may_fail": True}, script.RunStep(run="true", may_fail=True)),
    ({"say": "hello"}, script.SayStep(say="hello")),
    ({"stream": "a b", "every": 0.5}, script.StreamStep(stream="a b", every=0.5)),
    ({"answer": "yes"}, script.AnswerStep(answer="yes")),
    ({"ask": "why?", "choices": ["a"]}, script.AskStep(ask="why?", choices=("a",))),
    (
        {"petition": "github.comment", "body": {"n": [1]}},
        script.PetitionStep(petition="github.comment", body={"n": [1]}),
    ),
    ({"result": {"status": "success"}}, script.ResultStep(result={"status": "success"})),
    ({"remember": {"text": "t"}}, script.RememberStep(remember={"text": "t"})),
    ({"report": "# All"}, script.ReportStep(report="# All")),
    ({"cost": 1}, script.CostStep(cost=1.0)),
    ({"wait_for": "go"}, script.WaitForStep(wait_for="go")),
    ({"fail": "no"}, script.FailStep(fail="no")),
    ({"usage_limit": 60}, script.UsageLimitStep(usage_limit=60.0)),
    ({"hang": True}, script.HangStep(hang=True)),
    ({"hang": "deaf"}, script.HangStep(hang="deaf")),
    ({"crash": 3, "first_time_only": True}, script.CrashStep(crash=3, first_time_only=True)),
]


@pytest.mark.parametrize(("written", "step"), STEPS)
def test_each_kind_of_step_is_parsed(written: dict[str, Any], step: script.ScriptStep) -> None:
    assert parse_script(scripted(written)) == (step,)


def test_the_samples_include_every_kind_of_step() -> None:
    assert {type(step) for _, step in STEPS} == set(script.KINDS.values())


@pytest.mark.parametrize(
    "text", ["", "Fix the bug.", "```python\nprint()\n```", "a ```script in a line", "```scripted\n```"]
)
def test_a_prompt_without_the_block_has_no_script(text: str) -> None:
    assert parse_script(text) is None
    assert not script.has_script(text)


def test_blank_lines_and_the_text_around_the_block_do_not_matter() -> None:
    text = 'Please.\n\n```script\n\n{"say": "a"}\n\n  {"say": "b"}\n```\nThank you.\n```python\n1\n```\n'
    assert parse_script(text) == (script.SayStep(say="a"), script.SayStep(say="b"))


def test_an_empty_script_is_a_script() -> None:
    assert parse_script("```script\n```") == ()


def test_a_longer_fence_may_hold_a_shorter_one() -> None:
    assert parse_script('````script\n{"say": "```"}\n````\n') == (script.SayStep(say="```"),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("say hello", "line 2"),
        ("[1]", "line 2"),
        ('{"shout": "a"}', "exactly one of"),
        ('{"say": "a", "run": "b"}', "exactly one of"),
        ('{"say": 1}', "Expected `str`"),
        ('{"say": "a", "loud": true}', "loud"),
        ('{"hang": "for ever"}', "line 2"),
    ],
)
def test_an_invalid_line_is_reported_with_its_number_and_the_reason(line: str, reason: str) -> None:
    with pytest.raises(AgentFailed, match=reason) as caught:
        parse_script(f'```script\n{{"say": "a"}}\n{line}\n```')
    assert "line 2 of the script" in str(caught.value)
    assert line in str(caught.value)


def test_a_block_without_an_end_is_refused() -> None:
    with pytest.raises(AgentFailed, match="is not closed"):
        parse_script('```script\n{"say": "a"}\n')


def test_the_reply_fills_texts_at_any_depth() -> None:
    assert script.SayStep(say="so {reply}!").with_reply("x") == script.SayStep(say="so x!")
    petition = script.PetitionStep(
        petition="github.comment", body={"text": "{reply}", "at": {"line": "{reply}", "n": 1}}
    )
    filled = script.PetitionStep(petition="github.comment", body={"text": "x", "at": {"line": "x", "n": 1}})
    assert petition.with_reply("x") == filled


@pytest.mark.parametrize("step", [script.RunStep(run="echo {reply}"), script.WriteStep(write="{reply}", text="t")])
def test_the_reply_is_not_inserted_into_commands_and_paths(step: script.ScriptStep) -> None:
    assert step.with_reply("; rm -r .") == step

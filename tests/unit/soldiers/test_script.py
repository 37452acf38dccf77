from typing import Any

import pytest

from kingdom.soldiers.agents.port import AgentFailed
from kingdom.soldiers.agents.scripted import script
from kingdom.soldiers.agents.scripted.script import parse_script
from tests.fakes.scripts import scripted

STEPS: list[tuple[dict[str, Any], script.Step]] = [
    ({"write": "a/b", "text": "t"}, script.Write(write="a/b", text="t")),
    ({"append": "a/b", "text": "t"}, script.Append(append="a/b", text="t")),
    ({"run": "true", "may_fail": True}, script.Run(run="true", may_fail=True)),
    ({"say": "hello"}, script.Say(say="hello")),
    ({"stream": "a b", "every": 0.5}, script.Stream(stream="a b", every=0.5)),
    ({"answer": "yes"}, script.Answer(answer="yes")),
    ({"ask": "why?", "choices": ["a"]}, script.Ask(ask="why?", choices=("a",))),
    ({"petition": "github.comment", "body": {"n": [1]}}, script.Petition(petition="github.comment", body={"n": [1]})),
    ({"result": {"status": "success"}}, script.Result(result={"status": "success"})),
    ({"remember": {"text": "t"}}, script.Remember(remember={"text": "t"})),
    ({"report": "# All"}, script.Report(report="# All")),
    ({"cost": 1}, script.Cost(cost=1.0)),
    ({"wait_for": "go"}, script.WaitFor(wait_for="go")),
    ({"fail": "no"}, script.Fail(fail="no")),
    ({"usage_limit": 60}, script.UsageLimit(usage_limit=60.0)),
    ({"hang": True}, script.Hang(hang=True)),
    ({"hang": "deaf"}, script.Hang(hang="deaf")),
    ({"crash": 3, "first_time_only": True}, script.Crash(crash=3, first_time_only=True)),
]


@pytest.mark.parametrize(("written", "step"), STEPS)
def test_a_step_is_read_as_it_is_meant(written: dict[str, Any], step: script.Step) -> None:
    assert parse_script(scripted(written)) == (step,)


def test_every_kind_of_step_is_tried_here() -> None:
    assert {type(step) for _, step in STEPS} == set(script.KINDS.values())


@pytest.mark.parametrize(
    "text", ["", "Fix the bug.", "```python\nprint()\n```", "a ```script in a line", "```scripted\n```"]
)
def test_a_prompt_without_the_block_has_no_script(text: str) -> None:
    assert parse_script(text) is None
    assert not script.has_script(text)


def test_blank_lines_and_the_text_around_the_block_do_not_matter() -> None:
    text = 'Please.\n\n```script\n\n{"say": "a"}\n\n  {"say": "b"}\n```\nThank you.\n```python\n1\n```\n'
    assert parse_script(text) == (script.Say(say="a"), script.Say(say="b"))


def test_an_empty_script_is_a_script() -> None:
    assert parse_script("```script\n```") == ()


def test_a_longer_fence_may_hold_a_shorter_one() -> None:
    assert parse_script('````script\n{"say": "```"}\n````\n') == (script.Say(say="```"),)


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
def test_a_wrong_line_is_named_with_what_is_wrong(line: str, reason: str) -> None:
    with pytest.raises(AgentFailed, match=reason) as caught:
        parse_script(f'```script\n{{"say": "a"}}\n{line}\n```')
    assert "line 2 of the script" in str(caught.value)
    assert line in str(caught.value)


def test_a_block_without_an_end_is_refused() -> None:
    with pytest.raises(AgentFailed, match="no end"):
        parse_script('```script\n{"say": "a"}\n')


def test_the_reply_fills_texts_at_any_depth() -> None:
    assert script.Say(say="so {reply}!").with_reply("x") == script.Say(say="so x!")
    petition = script.Petition(petition="github.comment", body={"text": "{reply}", "at": {"line": "{reply}", "n": 1}})
    filled = script.Petition(petition="github.comment", body={"text": "x", "at": {"line": "x", "n": 1}})
    assert petition.with_reply("x") == filled


@pytest.mark.parametrize("step", [script.Run(run="echo {reply}"), script.Write(write="{reply}", text="t")])
def test_the_reply_has_no_say_in_commands_and_paths(step: script.Step) -> None:
    assert step.with_reply("; rm -r .") == step

"""The tools of an agent: the effects of calls, and the answers to wrong ones."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.court.memory import apply_memory_updates, list_memory
from kingdom.court.petitions.bodies import KINDS
from kingdom.errors import Unavailable
from kingdom.soldiers.agent_tools import result_file as report
from kingdom.soldiers.agent_tools.calls import TOOLS
from kingdom.soldiers.agent_tools.host_tools import HostTools
from kingdom.soldiers.agent_tools.port import AgentQuestion, ToolReply
from kingdom.soldiers.agent_tools.relay import BODY_BYTES_MAX, answer_tool_call
from kingdom.soldiers.agent_tools.result_file import RESULT_FILE
from kingdom.soldiers.agents.port import TurnAnswer
from kingdom.soldiers.redaction import Redaction
from kingdom.soldiers.turns.result import apply_reported_status, read_result, remove_unsuccessful_result
from kingdom.workflow.past_results import PastResult
from kingdom.workflow.verdicts import PetitionVerdict
from tests.patience import PATIENCE_SECONDS

Petitions = list[tuple[str, dict[str, Any]]]


async def no_verdict(_: str) -> PetitionVerdict | None:
    return None


def decides(*, granted: bool | None, reason: str = "") -> Callable[[str], Awaitable[PetitionVerdict | None]]:
    async def verdict(_: str) -> PetitionVerdict:
        return PetitionVerdict(granted=granted, reason=reason)

    return verdict


def in_turn(
    space: Path,
    verdict: Callable[[str], Awaitable[PetitionVerdict | None]] = no_verdict,
    petitions: Petitions | None = None,
    **options: Any,
) -> HostTools:
    """Return tools in the middle of a turn."""
    tools = HostTools(space, verdict, **options)
    received: Petitions = [] if petitions is None else petitions
    tools.begin("w1-t2#3", lambda kind, body: received.append((kind, body)))
    return tools


async def call_tool(tools: HostTools, tool: str, **arguments: Any) -> str:
    """Call a tool as the agent, successfully."""
    reply = await tools.call(tool, arguments)
    assert not reply.is_error, reply.text
    return reply.text


async def refused(tools: HostTools, tool: str, arguments: Mapping[str, Any]) -> str:
    reply = await tools.call(tool, arguments)
    assert reply.is_error
    return reply.text


SUCCESS = {"status": "success", "summary": "all good"}


async def test_a_reported_result_is_read_back_unchanged(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    await call_tool(tools, "report_result", **SUCCESS, details={"files": 3})
    assert read_result(tmp_path) == {**SUCCESS, "details": {"files": 3}}


async def test_a_later_report_replaces_the_result_of_an_earlier_one(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    await call_tool(tools, "report_result", status="failed", summary="no", error="the disk is full")
    await call_tool(tools, "report_result", **SUCCESS)
    assert read_result(tmp_path) == SUCCESS


async def test_a_report_that_needs_a_person_ends_the_turn_with_its_question(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    await call_tool(tools, "report_result", status="needs_human", summary="stuck", question="Which branch?")
    end = apply_reported_status(TurnAnswer("done", 0.5), tmp_path)
    assert getattr(end, "question", None) == "Which branch?"
    assert tools.end() == AgentQuestion(text="Which branch?", choices=())


async def test_a_later_report_withdraws_the_question_of_an_earlier_one(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    await call_tool(tools, "report_result", status="needs_human", summary="stuck", question="Which branch?")
    await call_tool(tools, "report_result", status="success", summary="found it")
    assert tools.end() is None


async def test_a_question_after_a_report_that_needs_a_person_is_not_withdrawn_by_a_later_report(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    await call_tool(tools, "report_result", status="needs_human", summary="stuck", question="Which branch?")
    assert "end your turn" in await call_tool(tools, "ask_human", question="Which one?", choices=["a", "b"])
    assert "end your turn" in await refused(tools, "report_result", SUCCESS)
    assert tools.end() == AgentQuestion(text="Which one?", choices=("a", "b"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"status": "success"}, "summary"),
        ({"status": "success", "summary": " "}, "summary must not be empty"),
        ({"status": "done", "summary": "x"}, "status"),
        ({"status": "failed", "summary": "x"}, "error must not be empty"),
        ({"status": "needs_human", "summary": "x"}, "question must not be empty"),
        ({"status": "skipped", "summary": "x"}, "reason must not be empty"),
        ({**SUCCESS, "task_id": "task-7"}, "task_id"),
        ({**SUCCESS, "details": [1]}, "details"),
        ({**SUCCESS, "details": "x" * 70_000}, "shorten"),
        ({**SUCCESS, "details": "a\x00b"}, "NUL"),
        ({**SUCCESS, "details": "\ud800"}, "surrogate"),
        ({**SUCCESS, "summary": "x" * 2001}, "summary"),
    ],
)
async def test_a_report_that_cannot_be_understood_says_what_to_correct(
    tmp_path: Path, arguments: dict[str, Any], complaint: str
) -> None:
    text = await refused(in_turn(tmp_path), "report_result", arguments)
    assert complaint in text
    assert "call report_result again" in text
    assert read_result(tmp_path) is None


async def test_a_tool_that_does_not_exist_is_answered_with_those_that_do(tmp_path: Path) -> None:
    text = await refused(in_turn(tmp_path), "finish", {})
    assert all(tool.name in text for tool in TOOLS)


async def test_a_link_in_the_place_of_the_result_is_replaced_and_not_followed(tmp_path: Path) -> None:
    space, outside = tmp_path / "space", tmp_path / "outside"
    space.mkdir()
    outside.write_text("untouched")
    for name in (RESULT_FILE, report.MEMORY_FILE):
        (space / name).symlink_to(outside)
    tools = in_turn(space)
    await call_tool(tools, "remember", text="Run make check.")
    await call_tool(tools, "report_result", **SUCCESS)
    assert outside.read_text() == "untouched"
    assert read_result(space) == {**SUCCESS, "memory_updates": [{"about": "patterns", "text": "Run make check."}]}


async def test_a_pipe_in_the_place_of_the_memory_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / report.MEMORY_FILE)
    await asyncio.wait_for(call_tool(in_turn(tmp_path), "report_result", **SUCCESS), PATIENCE_SECONDS)
    assert read_result(tmp_path) == SUCCESS


async def test_a_result_that_cannot_be_written_is_reported_to_the_agent(tmp_path: Path) -> None:
    assert RESULT_FILE in await refused(in_turn(tmp_path / "gone"), "report_result", SUCCESS)


async def test_a_folder_in_the_place_of_the_result_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / RESULT_FILE).mkdir()
    (tmp_path / RESULT_FILE / "kept").touch()
    await call_tool(in_turn(tmp_path), "report_result", **SUCCESS)
    assert read_result(tmp_path) == SUCCESS
    assert (tmp_path / f"{RESULT_FILE}.found-1" / "kept").exists()


async def test_sentences_remembered_before_and_after_the_report_become_memory(tmp_path: Path) -> None:
    space, package = tmp_path / "space", tmp_path / "package"
    space.mkdir()
    tools = in_turn(space)
    await call_tool(tools, "remember", text="Tests need a database.")
    await call_tool(tools, "report_result", **SUCCESS)
    await call_tool(tools, "remember", text="The API is in src/api.", about="repo")
    await call_tool(tools, "remember", text="Tests need a database.")
    result = read_result(space)
    assert result is not None
    assert apply_memory_updates(package, result["memory_updates"], "acme/api") == ()
    assert [(each.text, each.origin) for each in list_memory(package)] == [
        ("The API is in src/api.", "acme/api"),
        ("Tests need a database.", "patterns of acme/api"),
    ]


async def test_remembered_sentences_survive_the_host_and_a_withdrawn_report(tmp_path: Path) -> None:
    await call_tool(in_turn(tmp_path), "remember", text="Tests need a database.")
    another = in_turn(tmp_path)
    await call_tool(another, "report_result", status="failed", summary="no", error="no database")
    remove_unsuccessful_result(tmp_path)
    await call_tool(another, "report_result", **SUCCESS)
    result = read_result(tmp_path) or {}
    assert result["memory_updates"] == [{"about": "patterns", "text": "Tests need a database."}]


async def test_remembered_sentences_join_a_result_that_the_agent_wrote_by_hand(tmp_path: Path) -> None:
    (tmp_path / RESULT_FILE).write_text(json.dumps({**SUCCESS, "memory_updates": ["Written by hand."]}))
    await call_tool(in_turn(tmp_path), "remember", text="Said by voice.")
    result = read_result(tmp_path) or {}
    assert result["memory_updates"] == ["Written by hand.", {"about": "patterns", "text": "Said by voice."}]


async def test_remembering_alone_is_no_result(tmp_path: Path) -> None:
    await call_tool(in_turn(tmp_path), "remember", text="Tests need a database.")
    assert read_result(tmp_path) is None


async def test_memory_has_a_limit_and_says_so(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    for number in range(30):
        await call_tool(tools, "remember", text=f"Sentence {number}.")
    assert "limit" in await refused(tools, "remember", {"text": "One more."})
    assert "shorten" not in await call_tool(tools, "remember", text="Sentence 7.")


async def test_memory_and_details_never_make_a_result_unreadable(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    await call_tool(tools, "report_result", **SUCCESS, details="x" * 63_500)
    text = await refused(tools, "remember", {"text": "y" * 500})
    assert "shorten" in text
    assert read_result(tmp_path) == {**SUCCESS, "details": "x" * 63_500}


async def test_a_question_ends_the_turn_and_nothing_but_memory_is_taken_after_it(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    text = await call_tool(tools, "ask_human", question="Which one?", choices=["a", "b"], context="Both exist.")
    assert "end your turn" in text
    for tool, arguments in (
        ("report_result", SUCCESS),
        ("ask_human", {"question": "And when?"}),
        ("petition", {"kind": "github.comment", "body": {"body": "hi"}}),
    ):
        assert "end your turn" in await refused(tools, tool, arguments)
    await call_tool(tools, "remember", text="Ask first.")
    assert tools.end() == AgentQuestion(text="Which one?\n\nBoth exist.", choices=("a", "b"))
    assert read_result(tmp_path) is None


async def test_a_question_is_forgotten_when_the_next_turn_begins(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    await call_tool(tools, "ask_human", question="Which one?")
    tools.begin("w1-t2#3", lambda *_: None)
    await call_tool(tools, "report_result", **SUCCESS)
    assert tools.end() is None


async def test_tool_calls_between_turns_are_refused(tmp_path: Path) -> None:
    petitions: Petitions = []
    tools = in_turn(tmp_path, petitions=petitions)
    assert tools.end() is None
    for tool, arguments in (("report_result", SUCCESS), ("petition", {"kind": "github.comment", "body": {}})):
        assert "wait for your next prompt" in await refused(tools, tool, arguments)
    assert petitions == []
    assert read_result(tmp_path) is None


async def test_a_petition_is_reported_before_its_verdict_is_requested_by_its_id(tmp_path: Path) -> None:
    petitions: Petitions = []
    asked: list[tuple[str, int]] = []

    async def verdict(petition_id: str) -> PetitionVerdict:
        asked.append((petition_id, len(petitions)))
        return PetitionVerdict(granted=True)

    tools = in_turn(tmp_path, verdict, petitions)
    for text in ("one", "two"):
        reported = await call_tool(tools, "petition", kind="github.comment", body={"body": text})
        assert reported.startswith("Granted. It is allowed and will be done for you")
    assert petitions == [("github.comment", {"body": "one"}), ("github.comment", {"body": "two"})]
    assert asked == [("w1-t2-a3-p1", 1), ("w1-t2-a3-p2", 2)]


async def test_the_agent_learns_why_a_petition_was_refused(tmp_path: Path) -> None:
    tools = in_turn(tmp_path, decides(granted=False, reason="the policy does not allow it"))
    text = await refused(tools, "petition", {"kind": "github.comment", "body": {"body": "hi"}})
    assert "the policy does not allow it" in text


async def test_a_petition_that_waits_for_a_person_does_not_hold_the_agent_up(tmp_path: Path) -> None:
    tools = in_turn(tmp_path, decides(granted=None, reason="a person has to approve it"))
    text = await call_tool(tools, "petition", kind="github.comment", body={"body": "hi"})
    assert "a person has to approve it" in text


async def test_an_agent_continues_without_a_verdict_that_does_not_come_in_time(tmp_path: Path) -> None:
    async def never(_: str) -> PetitionVerdict:
        await asyncio.Event().wait()
        raise AssertionError

    async def unreachable(_: str) -> PetitionVerdict:
        raise Unavailable("the store is away")

    for verdict in (never, unreachable, no_verdict):
        tools = in_turn(tmp_path, verdict, verdict_limit=timedelta(milliseconds=10))
        assert "noted" in await call_tool(tools, "petition", kind="github.comment", body={"body": "hi"})


async def test_petitions_of_a_turn_have_a_limit(tmp_path: Path) -> None:
    petitions: Petitions = []
    tools = in_turn(tmp_path, petitions=petitions)
    for _ in range(50):
        await call_tool(tools, "petition", kind="github.comment", body={})
    assert "limit" in await refused(tools, "petition", {"kind": "github.comment", "body": {}})
    assert len(petitions) == 50


async def test_no_secret_leaves_through_a_tool_call(tmp_path: Path) -> None:
    petitions: Petitions = []
    tools = in_turn(tmp_path, petitions=petitions, redaction=Redaction(["open sesame!"]))
    secrets = f"open sesame! and ghp_{'a1' * 20}"
    await call_tool(tools, "petition", kind="github.comment", body={"body": secrets, "more": [{"deep": secrets}]})
    await call_tool(tools, "remember", text=secrets)
    await call_tool(tools, "report_result", status="success", summary=secrets, details={"said": secrets})
    await call_tool(tools, "ask_human", question=secrets, choices=[secrets])
    stored = [(tmp_path / name).read_text() for name in (RESULT_FILE, report.MEMORY_FILE)]
    everything = f"{petitions} {stored} {tools.end()}"
    assert everything.count("[redacted] and [redacted]") == 8
    assert "sesame" not in everything
    assert "ghp_" not in everything


async def test_a_document_nested_too_deeply_is_harmless(tmp_path: Path) -> None:
    body: dict[str, Any] = {}
    for _ in range(5000):
        body = {"deeper": body}
    reply = await in_turn(tmp_path).call("petition", {"kind": "github.comment", "body": body})
    assert not reply.is_error


def test_the_tools_describe_every_kind_of_petition() -> None:
    description = next(tool.description for tool in TOOLS if tool.name == "petition")
    assert [kind for kind in KINDS if f"{kind} {{" not in description] == []


def test_every_argument_has_a_description_and_a_type() -> None:
    for tool in TOOLS:
        for name, field in tool.schema["properties"].items():
            assert field["description"], (tool.name, name)
            assert "type" in field or "anyOf" in field, (tool.name, name)


async def test_a_relayed_call_gets_the_same_answer_as_a_direct_one(tmp_path: Path) -> None:
    tools = in_turn(tmp_path)
    body = json.dumps({"tool": "report_result", "arguments": SUCCESS}).encode()
    assert json.loads(await answer_tool_call(tools, body)) == {
        "text": (await tools.call("report_result", SUCCESS)).text,
        "is_error": False,
    }


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"arguments": {}}', b'{"tool": "remember", "arguments": 7}', b"\xff", b"[" * 100_000],
)
async def test_a_body_that_is_not_a_call_is_answered_with_an_error(tmp_path: Path, body: bytes) -> None:
    assert json.loads(await answer_tool_call(in_turn(tmp_path), body))["is_error"]


async def test_a_call_that_is_too_large_is_not_even_read(tmp_path: Path) -> None:
    reply = json.loads(await answer_tool_call(in_turn(tmp_path), b" " * (BODY_BYTES_MAX + 1)))
    assert reply == {"text": ToolReply(text=f"the call has more than {BODY_BYTES_MAX} bytes").text, "is_error": True}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeoutError(), "the store did not answer in time"),
        (ConnectionResetError(), "ConnectionResetError"),
        (Unavailable("the store is down"), "the store is down"),
    ],
)
async def test_the_answer_to_an_agent_says_why_earlier_results_cannot_be_read(
    tmp_path: Path, error: Exception, why: str
) -> None:
    async def fail(_: int) -> list[PastResult]:
        raise error

    reply = await in_turn(tmp_path, find_results=fail).call("read_results", {"count": 1})
    assert reply == ToolReply(text=f"The results cannot be read now ({why}): continue without them.", is_error=True)

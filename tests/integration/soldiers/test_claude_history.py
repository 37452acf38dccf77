"""The history of a Claude Code session, read without its process."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.agents.claude import history
from kingdom.soldiers.agents.claude.history import ClaudeHistory, SessionFileTail, find_session_file, read_answer
from kingdom.soldiers.agents.port import Prompt
from kingdom.soldiers.agents.session_log import CONTINUE_PROMPT, read_history
from kingdom.soldiers.agents.transcript import TranscriptEntry
from kingdom.soldiers.files.agent_files import AgentFile

SESSION = "5e5510a0-0000-4000-8000-000000000000"
QUERY: TranscriptEntry = {"type": "prompt", "prompt": "t1#1", "text": "the query", "uuid": "u1"}


def assistant_entry(text: str, *, stop: str = "end_turn", message: str = "m1", **fields: Any) -> TranscriptEntry:
    content = [{"type": "text", "text": text}]
    answer_envelope = {"id": message, "model": "claude", "role": "assistant", "stop_reason": stop, "content": content}
    return {"type": "assistant", "uuid": "x", "message": answer_envelope, **fields}


def prompted(uuid: str) -> TranscriptEntry:
    return {"type": "user", "uuid": uuid, "promptSource": "sdk", "message": {"role": "user", "content": "the query"}}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home/.claude/projects/-space").mkdir(parents=True)
    return {"HOME": str(tmp_path / "home")}


def write_own(home: dict[str, str], *entries: TranscriptEntry) -> AgentFile:
    own = AgentFile(Path(home["HOME"]), f".claude/projects/-space/{SESSION}.jsonl")
    own.path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return own


def past(*entries: TranscriptEntry) -> ClaudeHistory:
    found = read_history([{"type": "session", "session": SESSION}, *entries], SESSION, ClaudeHistory)
    assert found is not None
    return found


def test_a_prompt_of_another_task_is_sent_unchanged() -> None:
    assert past(QUERY).text_for(Prompt(id="t2#1", text="another"), None) == "another"


def test_a_prompt_is_continued_only_if_the_session_file_has_it(home: dict[str, str]) -> None:
    goes_on = Prompt(id="t1#2", text="the query", continues=True)
    assert past(QUERY).text_for(goes_on, None) == "the query"
    assert past(QUERY).text_for(goes_on, write_own(home, prompted("other"))) == "the query"
    assert past(QUERY).text_for(goes_on, write_own(home, prompted("u1"))) == CONTINUE_PROMPT


def test_a_continued_agent_gets_its_petitions_of_all_attempts(home: dict[str, str]) -> None:
    own = write_own(home, prompted("u1"), prompted("u2"))
    one = {"type": "petition", "prompt": "t1#1", "kind": "github.comment", "body": {"text": "one"}}
    again: TranscriptEntry = {**QUERY, "prompt": "t1#2", "continues": True, "sent": CONTINUE_PROMPT, "uuid": "u2"}
    two = {"type": "petition", "prompt": "t1#2", "kind": "github.close"}
    text = past(QUERY, one, again, two).text_for(Prompt(id="t1#3", text="the query", continues=True), own)
    assert text.startswith(CONTINUE_PROMPT)
    assert text.endswith('\n- github.comment {"text": "one"}\n- github.close {}')
    retried: TranscriptEntry = {**QUERY, "prompt": "t2#1", "uuid": "u2"}
    assert (
        past(QUERY, one, retried).text_for(Prompt(id="t2#2", text="the query", continues=True), own) == CONTINUE_PROMPT
    )


def test_the_next_task_is_sent_after_an_answered_prompt() -> None:
    answered = {"type": "answered", "prompt": "t1#1", "answer": "yes"}
    assert past(QUERY, answered).text_for(Prompt(id="t2#1", text="next", continues=True), None) == "next"


def test_a_reply_is_sent_once(home: dict[str, str]) -> None:
    asked = {"type": "asked", "prompt": "t1#1", "question": "Which?"}
    replied = Prompt(id="t1#2", text="the query", reply="y", continues=True)
    assert past(QUERY, asked).text_for(replied, None) == "y"
    sent: TranscriptEntry = {**QUERY, "prompt": "t1#2", "reply": "y", "sent": "y", "uuid": "u2"}
    own = write_own(home, prompted("u1"), prompted("u2"))
    assert past(QUERY, asked, sent).text_for(Prompt(id="t1#3", text="the query", reply="y"), own) == CONTINUE_PROMPT
    assert past(QUERY, asked, sent).text_for(Prompt(id="t1#3", text="the query", reply="y"), None) == "y"


def test_a_reply_to_a_session_without_a_question_is_sent_after_its_query() -> None:
    text = past().text_for(Prompt(id="t1#2", text="the query", reply="y"), None)
    assert text.startswith("the query")
    assert text.endswith("y")


def test_only_the_last_session_of_a_transcript_is_read() -> None:
    entries: list[TranscriptEntry] = [
        {"type": "session", "session": "one"},
        QUERY,
        {"type": "session", "session": "two"},
    ]
    assert read_history(entries, "one", ClaudeHistory) is None
    found = read_history(entries, "two", ClaudeHistory)
    assert found is not None
    assert found.unfinished is None


def test_a_session_file_shows_an_answer_in_all_its_parts(home: dict[str, str]) -> None:
    before = assistant_entry("I look.", stop="tool_use", message="m0")
    own = write_own(
        home,
        prompted("u1"),
        before,
        assistant_entry("All "),
        assistant_entry("is well."),
        prompted("u2"),
        assistant_entry("no", message="m2"),
    )
    assert read_answer(own, "u1") == "All is well."
    assert read_answer(own, "u3") is None


@pytest.mark.parametrize(
    "last",
    [
        assistant_entry("I look.", stop="tool_use"),
        assistant_entry("API Error", isApiErrorMessage=True),
        {"type": "user", "uuid": "x", "message": {"role": "user", "content": "[Request interrupted by user]"}},
    ],
    ids=["in a tool", "an error", "interrupted"],
)
def test_a_last_entry_of_another_kind_is_not_taken_for_an_answer(home: dict[str, str], last: TranscriptEntry) -> None:
    assert (
        read_answer(write_own(home, prompted("u1"), assistant_entry("half", message="m0", stop="tool_use"), last), "u1")
        is None
    )


def test_invalid_lines_in_a_session_file_are_skipped(home: dict[str, str]) -> None:
    nonsense: list[TranscriptEntry] = [
        {"type": "user"},
        {"type": "assistant"},
        {"type": "assistant", "message": {"id": "m1"}},
    ]
    blocks = assistant_entry("", stop="tool_use")
    blocks["message"]["content"] = [1, {"type": "text"}, {"type": "text", "text": 5}]
    own = write_own(home, prompted("u1"), *nonsense, blocks, assistant_entry("all the same"))
    assert read_answer(own, "u1") == "all the same"


def test_a_subagent_does_not_answer_for_the_agent(home: dict[str, str]) -> None:
    own = write_own(
        home,
        prompted("u1"),
        assistant_entry("I send for it.", stop="tool_use"),
        assistant_entry("mine", isSidechain=True),
    )
    assert read_answer(own, "u1") is None


def test_tool_calls_are_found_in_every_form_of_entry(home: dict[str, str]) -> None:
    own = write_own(home, prompted("toolu_old"))
    record = SessionFileTail(home, SESSION)
    assert not record.mentions("toolu_1")
    with own.path.open("a") as file:
        file.write('{"id":"toolu_1"}{"id":"toolu_2"}{"id":"tool')
        file.flush()
        assert record.mentions("toolu_1")
        assert record.mentions("toolu_2")
        file.write('u_3"}')
    assert record.mentions("toolu_3")


def test_a_session_file_is_searched_until_it_is_found_and_again_after_it_was_replaced(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[AgentFile | None] = []

    def look(environment: Mapping[str, str], session: str) -> AgentFile | None:
        looks.append(find_session_file(environment, session))
        return looks[-1]

    monkeypatch.setattr(history, "find_session_file", look)
    record = SessionFileTail(home, SESSION)
    assert not record.mentions("toolu_1")
    own = write_own(home, prompted("toolu_1"))
    assert record.mentions("toolu_1")
    assert not record.mentions("toolu_2")
    assert looks == [None, own]
    own.path.unlink()
    os.mkfifo(own.path)
    assert not record.mentions("toolu_1")
    own.path.unlink()
    write_own(home, prompted("toolu_2"))
    assert record.mentions("toolu_2")
    assert looks == [None, own, own]


def test_a_session_file_in_a_linked_folder_is_not_read(home: dict[str, str], tmp_path: Path) -> None:
    own = write_own(home, prompted("u1"))
    assert find_session_file(home, SESSION) == own
    projects = own.path.parents[1]
    projects.rename(tmp_path / "elsewhere")
    projects.symlink_to(tmp_path / "elsewhere")
    assert find_session_file(home, SESSION) is None


def test_another_attempt_at_an_answered_prompt_continues_it() -> None:
    answered = past(QUERY, {"type": "answered", "prompt": "t1#1", "answer": "done"})
    assert answered.text_for(Prompt(id="t1#2", text="the query", continues=True), None) == CONTINUE_PROMPT
    assert answered.text_for(Prompt(id="t1#2", text="the query", reply="left"), None) == "left"
    assert answered.text_for(Prompt(id="t2#1", text="another", continues=True), None) == "another"

"""`kingdom inbox` and `kingdom answer`: people at a terminal, each command its own process."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from kingdom.actions.questions import digest_of
from kingdom.court.documents import Assignment
from kingdom.court.questions import save_question
from kingdom.court.records import load, save
from tests.acceptance.terminal import Done, Terminal
from tests.integration.court.envoy.scene import TASK, Scene


@pytest.fixture
def terminal(scene: Scene, tmp_path: Path) -> Terminal:
    place = scene.backend.place
    return Terminal(tmp_path, f"file:{place}" if scene.backend.name == "files" else place)


async def run(terminal: Terminal, *words: str) -> Done:
    return await asyncio.to_thread(terminal.run, *words)


async def test_an_open_question_is_shown_and_answered(scene: Scene, terminal: Terminal) -> None:
    await scene.ask_person("Merge it?", "approve", "reject")
    async with scene.bus.transaction() as transaction:
        record, asking = await load(transaction, Assignment, TASK)
        about = {"number": 7, "title": "Mend the till"}
        await save(transaction, msgspec.structs.replace(asking, repo="acme/shop", payload=about), record)
    [shown] = (await run(terminal, "inbox", "--json")).document
    ask = await scene.open_question()
    assert shown == {
        "task_id": TASK,
        "general": "gen-pr",
        "about": "github.pr.comment acme/shop#7 Mend the till",
        "question": "Merge it?",
        "choices": ["approve", "reject"],
        "people": [],
        "asked_at": ask.asked_at.isoformat().replace("+00:00", "Z"),
        "due_at": ask.due_at.isoformat().replace("+00:00", "Z"),
        "default": "",
        "digest": digest_of(ask),
    }
    table = (await run(terminal, "inbox")).out
    assert TASK in table
    assert "approve, reject" in table
    done = await run(terminal, "answer", TASK, "approve", "--json")
    assert done.code == 0, done.err
    [event] = await scene.events()
    assert done.document == {"task_id": TASK, "event_id": event.id, "question": "Merge it?"}
    assert event.id.startswith(f"evt-cli-response-{TASK}-")
    assert (event.type, event.source, event.status) == ("cli.human_response", "cli", "pending")
    assert (event.payload["text"], event.payload["user"]) == ("approve", "tester")
    assert len(await scene.log("message.human_response")) == 1


async def test_only_an_open_question_can_be_answered(scene: Scene, terminal: Terminal) -> None:
    assert (await run(terminal, "inbox")).out.strip() == "There are no open questions."
    await scene.ask_person()
    done = await run(terminal, "answer", "task-20260207-999", "yes")
    assert (done.code, TASK in done.err) == (1, True)
    async with scene.bus.transaction() as transaction:
        record = await transaction.get("ask", TASK)
        await save_question(transaction, (await scene.open_question()).with_answer("dana", "no"), record)
    late = await run(terminal, "answer", TASK, "yes")
    assert late.code == 1
    assert "already answered by dana" in late.err
    assert await scene.events() == []


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_a_misspelled_choice_is_refused_and_the_first_answer_waits_for_the_king(
    scene: Scene, terminal: Terminal
) -> None:
    await scene.ask_person("Merge it?", "yes", "no")
    slip = await run(terminal, "answer", "last", "yse")
    hint = "yse is not one of yes, no; did you mean yes? For free text add --words"
    assert (slip.code, hint in slip.err) == (1, True), slip
    assert (await run(terminal, "answer", "last", "yse", "--words")).code == 0
    assert "answered: yse, waits for the King" in (await run(terminal, "inbox")).out
    late = await run(terminal, "answer", TASK, "no")
    assert (late.code, "already answered by tester: yse; the King processes that answer" in late.err) == (1, True), late
    async with scene.king():
        await scene.is_answered()
    assert (await scene.open_question()).answer == "yse"


async def test_only_allowed_people_may_answer(scene: Scene, terminal: Terminal) -> None:
    await scene.ask_person(people=("dana",))
    refused = await run(terminal, "answer", TASK, "yes")
    assert refused.code == 1
    assert "tester may not answer; allowed: dana" in refused.err
    assert (await run(terminal, "answer", TASK, "yes", "--as", "dana")).code == 0
    assert len(await scene.events()) == 1


async def test_without_an_app_token_slack_shows_no_buttons_but_the_command_that_answers(scene: Scene) -> None:
    async with scene.envoy(listens=False):
        await scene.begin()
        await scene.is_sent(await scene.ask_person("Merge it?", "approve", "reject <x>"))
        _, question = await scene.app_messages()
    assert [block["type"] for block in question["blocks"]] == ["section", "context"]
    [way] = question["blocks"][-1]["elements"]
    shown = f"Choices: approve, reject &lt;x&gt;. `kingdom answer {TASK} TEXT` answers it. Deadline: "
    assert way["text"].startswith(shown)


async def test_an_answer_by_command_removes_the_buttons_of_the_question_in_slack(
    scene: Scene, terminal: Terminal
) -> None:
    async with scene.envoy() as envoy, scene.king():
        await scene.begin()
        await scene.is_sent(await scene.ask_person("Merge it?", "yes"))
        assert (await run(terminal, "answer", TASK, "yes")).code == 0
        await scene.is_answered()
        await envoy.remind()
        _, question = await scene.app_messages()
    assert await scene.remembered("awaiting-responses") == {}
    assert "Answered by tester: yes" in question["text"]
    assert all(block["type"] != "actions" for block in question["blocks"])

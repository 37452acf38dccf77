"""The screen as a person uses it, on real stores with real agents."""

from functools import partial
from pathlib import Path

import pytest
from textual.screen import Screen

from kingdom.court.documents import AssignmentStatus
from kingdom.top.dashboard import Dashboard
from kingdom.top.dialogs import HelpDialog
from kingdom.top.document_screen import DocumentScreen
from kingdom.workflow.model.messages.events import WorkflowResumed
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.integration.court.general.scene import CourtScene, opened, reports, work
from tests.integration.soldiers import host_scene
from tests.integration.soldiers.host_scene import HostScene, task
from tests.integration.top.scene import ANNA, TopUser, opened_top

SUCCESS = reports(status="success", summary="all is well")
HOSTILE = "[bold red]x[/] [@click=app.quit]y[/] \x1b[31m\x1b]0;z\x07 \u202egnp.exe \N{SNOWMAN}"
CHECKOUT = "acme-app"


def tree(court: CourtScene, run_id: str) -> Path:
    return court.folder / "host-a" / "runs" / run_id / "trees" / f"{run_id}-tree1"


async def test_a_run_is_watched_from_its_event_to_its_end_and_answered_in_place(
    backend: BackendUnderTest, tmp_path: Path
) -> None:
    async with opened(backend, tmp_path) as court, opened_top(backend, tmp_path, size=(80, 24)) as anna:
        write = {"write": f"{CHECKOUT}/seen.txt", "text": "hello there\n"}
        court.has(
            work("look", {"say": "I look around"}, write, {"wait_for": f"{CHECKOUT}/go"}, {"say": "I went"}),
            work("do", {"ask": "Both of them?", "choices": ["yes", "no"]}, SUCCESS),
        )
        await anna.sees("Nothing runs.")
        await court.send_event()
        run_id = await _live_run(anna)
        await anna.sees("RUNNING", "0/2", "today $")
        await _sees_what_it_does(anna, court, run_id)
        await anna.sees("AWAITING", "1/2", "asks: Both of")
        await _answers(anna)
        await court.until_assignment(AssignmentStatus.COMPLETED)
        await anna.press("1")
        await anna.sees("COMPLETED", "2/2")
        await anna.press("y")
        await anna.sees("review_requested", "gave it to gen-test")


async def _live_run(anna: TopUser) -> str:
    await anna.until(lambda: len(anna.rows) == 1)
    return next(iter(anna.rows))


async def _sees_what_it_does(anna: TopUser, court: CourtScene, run_id: str) -> None:
    """Look at the run, its growing transcript, and its diff."""
    await anna.opens("l")
    await anna.sees("said      I look around")
    assert "said      I went" not in anna.text
    await anna.leaves()
    await anna.opens("d")
    await anna.sees("+hello there")
    await anna.leaves("q")
    await anna.opens("enter")
    await anna.sees("1. look (w1) RUNNING", "checkouts")
    await anna.leaves("q")
    await anna.opens("l")
    await anna.sees("I look around")
    (tree(court, run_id) / "go").touch()
    await anna.sees("said      I went", "question  Both of them? (yes / no)")
    await anna.leaves()


async def _answers(anna: TopUser) -> None:
    await anna.press("tab", "tab")
    await anna.sees("task-", "Both of them?", "yes / no")
    await anna.opens("enter")
    await anna.sees("may answer  everyone")
    await anna.leaves("q")
    await anna.opens("a")
    await anna.sees("gen-test asks:", "Choices: yes / no")
    await anna.press("enter")
    await anna.sees("the answer is empty")
    await anna.press(*"yes")
    await anna.leaves("enter")
    await anna.until(lambda: not anna.rows)
    await anna.sees("No question is open.")


@pytest.fixture
def files(realm: Path) -> BackendUnderTest:
    return BACKENDS["files"](str(realm))


async def test_a_run_of_a_person_is_answered_resumed_from_a_checkpoint_and_cancelled_after_a_question(
    files: BackendUnderTest, tmp_path: Path
) -> None:
    async with host_scene.opened(files, tmp_path / "machine") as scene, opened_top(files, tmp_path) as anna:
        await scene.start_host()
        asks = task({"ask": "Which colour?"}, {"say": "thanks"})
        run = await scene.begin(host_scene.work("first", task({"say": "one"})), host_scene.work("second", asks))
        await _replies(anna, scene, run)
        await scene.until(run, WorkflowStatus.COMPLETED)
        again = await scene.begin(host_scene.work("first", task({"say": "one"})), host_scene.work("second", asks))
        await scene.until(again, WorkflowStatus.AWAITING)
        await anna.press("1")
        await anna.until(lambda: next(iter(anna.rows)) == again.id)
        await anna.press("home", "r")
        await anna.sees("Where should", "in the same session", "w1-c1 after first", "from the beginning")
        await anna.press("down", "enter")
        await scene.until_true(again, lambda now: now.roll_backs == 1)
        rolled = await scene.until(again, WorkflowStatus.AWAITING)
        assert len(rolled.checkpoints) == 1
        await _cancels(anna, scene, again)
        await scene.until_true(again, lambda now: now.status is WorkflowStatus.CANCELLED)
        await anna.sees("CANCELLED")
        await anna.press("r")
        await anna.sees("CANCELLED: cannot")


async def _replies(anna: TopUser, scene: HostScene, run: Workflow) -> None:
    await anna.sees("asks: Which colour?")
    await anna.press("3")
    await anna.until(lambda: list(anna.rows) == [run.id])
    await anna.opens("a")
    await anna.sees("Run 1 asks:", "your answer")
    await anna.press(*"red")
    await anna.leaves("enter")
    assert [entry.actor for entry in await scene.logged(run, WorkflowResumed)] == [ANNA]


async def _cancels(anna: TopUser, scene: HostScene, run: Workflow) -> None:
    await anna.press("c")
    await anna.sees(f"Cancel {run.id}")
    await anna.leaves("enter")
    assert (await scene.show(run)).status is WorkflowStatus.AWAITING
    await anna.press("c")
    await anna.sees(f"Cancel {run.id}")
    await anna.leaves("y")


async def test_help_shows_every_key_of_the_screen(files: BackendUnderTest, tmp_path: Path) -> None:
    async with opened_top(files, tmp_path) as anna:
        await anna.sees("Nothing runs.")
        for opened_by, screen in (((), Dashboard), (("4", "enter"), DocumentScreen)):
            await anna.press(*opened_by)
            await anna.until(partial(_is_on, anna, screen))
            bound = anna.app.screen.active_bindings.values()
            wanted = {anna.app.get_key_display(active.binding) for active in bound}
            await anna.press("question_mark")
            await anna.until(partial(_is_on, anna, HelpDialog))
            help_screen = anna.app.screen
            assert isinstance(help_screen, HelpDialog)
            assert wanted == {key for keys, _ in help_screen.lines for key in keys.split()}
            await anna.sees("?", "help")
            await anna.press("escape")
            await anna.until(partial(_is_on, anna, screen))


def _is_on(anna: TopUser, screen: type[Screen[None]]) -> bool:
    return isinstance(anna.app.screen, screen)


async def test_text_of_strangers_is_shown_and_has_no_effect(files: BackendUnderTest, tmp_path: Path) -> None:
    async with opened(files, tmp_path) as court, opened_top(files, tmp_path) as anna:
        court.has(work("look", {"say": HOSTILE}, {"ask": HOSTILE, "choices": [HOSTILE]}, SUCCESS))
        await court.send_event()
        seen = "[bold red]x[/] [@click=app.quit]y[/]"
        await anna.sees(f"asks: {seen}")
        for pane, key in (("1", "l"), ("1", "enter"), ("3", "enter"), ("3", "a"), ("3", "y")):
            await anna.press(pane)
            await anna.opens(key)
            await anna.sees(seen)
            assert not any(character in anna.text for character in "\x1b\x07\u202e")
            await anna.leaves()
        await anna.press("slash", "[", "b")
        await anna.until(lambda: len(anna.rows) == 1)
        assert "\N{SNOWMAN}" in anna.text
        await anna.press("enter")
        await anna.opens("a")
        await anna.sees(seen)
        shown = anna.text.count(seen)
        await anna.press("[")
        await anna.until(lambda: anna.text.count(seen) > shown, lambda: anna.text)
        assert not any(character in anna.text for character in "\x1b\x07\u202e")
        await anna.press("right")
        await anna.leaves("enter")
        await court.until_assignment(AssignmentStatus.COMPLETED)

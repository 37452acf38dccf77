from datetime import timedelta
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType

from kingdom.cli.demo.view import end_view, screen_view
from kingdom.clock import utc_now
from kingdom.demo.narration import NarrationLine, Tone
from kingdom.demo.report import DemoAssignment, DemoFile, DemoReport, KilledProcess
from kingdom.demo.store_watcher import AnsweredQuestion, DemoState

HEIGHT = 24


def shown(view: RenderableType) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=100, height=HEIGHT).print(view)
    return stream.getvalue().rstrip("\n").split("\n")


def test_the_screen_never_grows_and_shows_what_happened_last() -> None:
    lines = [NarrationLine("king", f"decides {number}") for number in range(100)]
    first, last = (
        shown(screen_view("1/6  Begin", "Look.", shown_lines, DemoState(), height=HEIGHT))
        for shown_lines in (lines[:1], lines)
    )
    assert len(first) == len(last) <= HEIGHT
    for screen, words in ((first, "decides 0"), (last, "decides 99")):
        assert any("1/6  Begin" in line for line in screen)
        assert any(words in line for line in screen)
    assert not any("decides 0" in line for line in last)


def test_a_role_without_a_recent_heartbeat_is_not_shown_as_running() -> None:
    now = utc_now()
    state = DemoState(heartbeats={"king": now - timedelta(seconds=9), "envoy": now}, at=now)
    (roles,) = [line for line in shown(screen_view("", "", [], state, height=HEIGHT)) if "king" in line]
    assert "✗ king silent for 9.0 s" in roles
    assert "● envoy" in roles
    assert "○ general" in roles


def test_a_message_of_an_agent_cannot_control_the_terminal() -> None:
    line = NarrationLine("agent", "“\x1b[2J\x07gone”", Tone.WORDS)
    screen = "\n".join(shown(screen_view("", "", [line], DemoState(), height=HEIGHT)))
    assert ("\x1b" in screen, "\\x1b[2J" in screen) == (False, True)


def test_the_end_shows_the_verdict_and_the_files_to_look_at() -> None:
    report = DemoReport(
        ok=False,
        seconds=1.0,
        directory=None,
        has_slack=False,
        question=AnsweredQuestion(question="Why?", answer="no", answered_by="dana"),
        kills=[KilledProcess(what="king", pid=1, back_after_seconds=1.5)],
        checkpoints=["w1-c1"],
        resumed_from="w1-c1",
        assignments=[DemoAssignment(assignment_id="task-1", general="gen-a", status="failed", cost_usd=0.5)],
        cost_usd=0.5,
        outside={"reviews": 2},
        places=[DemoFile(path="kingdom.yaml", what="the settings")],
        findings=["people outside saw 2 reviews, not one"],
    )
    screen = "\n".join(shown(end_view(report, Path("elsewhere"))))
    for words in ("saw 2 reviews, not one", "king (back after 1.5 s)", "cd elsewhere", "cat kingdom.yaml", "$0.50"):
        assert words in screen
    assert "Nothing was lost" not in screen

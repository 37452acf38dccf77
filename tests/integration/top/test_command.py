"""How `kingdom top` starts, or says why it cannot."""

import signal
import sys
from pathlib import Path

import pytest

from kingdom.cli.dispatch import run
from kingdom.cli.framework import exit_code
from tests.acceptance.terminal import Terminal
from tests.contract.backends import BACKENDS
from tests.integration.top.test_screen import REALM


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_without_a_terminal_it_says_what_to_use_instead(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["top", *words]) == exit_code.USAGE
    assert "use `kingdom status --json` or `kingdom ps --watch` instead" in capsys.readouterr().err


def test_without_its_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.delitem(sys.modules, "kingdom.top.app", raising=False)
    assert run(["top"]) == exit_code.USAGE
    assert "pip install 'kingdom[top]'" in capsys.readouterr().err


@pytest.mark.parametrize(("leave", "code"), [("q", 0), (signal.SIGTERM, 143)])
async def test_on_a_terminal_it_shows_the_court_until_the_user_quits(
    realm: Path, tmp_path: Path, leave: str | signal.Signals, code: int
) -> None:
    async with BACKENDS["files"](str(realm)).open(REALM.topology, REALM.kinds):
        pass
    seen = Terminal(tmp_path, f"file:{realm}").converse("top", until="Nothing runs.", answer=leave)
    assert seen.code == code
    assert "the Chamberlain has not measured it yet" in seen.out
    # The earlier content of the terminal is restored.
    assert "\x1b[?1049l" in seen.out

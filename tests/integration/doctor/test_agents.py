import sys
from pathlib import Path
from typing import Any

import claude_agent_sdk
import pytest

from tests.integration.doctor.scene import look_at, write_program, write_settings

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")


@pytest.fixture(autouse=True)
def _with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "very-secret")


async def report(directory: Path, **soldiers: Any) -> tuple[str, str]:
    found = await look_at("agent", config=write_settings(directory, soldiers={"sandbox": "off", **soldiers}))
    assert "very-secret" not in found.found + found.fix
    return found.status, found.found


async def test_the_scripted_agent_needs_nothing_but_its_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    status, found = await report(tmp_path, sandbox="strict")
    assert (status, "bubblewrap is not installed" in found) == ("fail", True)
    assert await report(tmp_path) == ("ok", "scripted, which needs no installation")


@pytest.mark.parametrize(
    ("agent", "program"), [("codex", "codex-acp"), ("gemini", "gemini"), ("opencode", "opencode"), ("aider", "aider")]
)
async def test_the_program_is_found_on_the_path_of_the_host(tmp_path: Path, agent: str, program: str) -> None:
    there = write_program(tmp_path / "tools", program, f"echo {program}-cli v1.2.3 '(build 7)'")
    assert await report(tmp_path, agent=agent, path=["tools"]) == ("ok", f"{agent} 1.2.3 in {there}")


async def test_the_configured_agent_is_checked_even_if_the_rest_of_the_file_is_invalid(tmp_path: Path) -> None:
    there = write_program(tmp_path / "tools", "aider", "echo aider v1.2.3")
    mine = {"sandbox": "off", "agent": "aider", "path": ["tools"]}
    github = {"token": "env:NOT_SET_ANYWHERE", "logins": ["us"]}
    found = await look_at("agent", config=write_settings(tmp_path, soldiers=mine, sentinel={"github": github}))
    assert (found.status, found.found) == ("ok", f"aider 1.2.3 in {there}")
    found = await look_at("agent", config=write_settings(tmp_path, soldiers={**mine, "slots": "none"}))
    assert (found.status, "settings cannot be read" in found.found) == ("skipped", True)


async def test_an_agent_that_npm_has_installed_into_a_folder_is_found(tmp_path: Path) -> None:
    there = write_program(tmp_path / "npm" / "node_modules" / ".bin", "codex-acp", "echo codex-acp 2.6.0")
    assert await report(tmp_path, agent="codex", agents="npm") == ("ok", f"codex 2.6.0 in {there}")


async def test_the_claude_that_the_sdk_bundles_is_found_without_a_path(tmp_path: Path) -> None:
    bundled = (Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude").resolve()
    status, found = await report(tmp_path, agent="claude")
    assert (status, found.partition(" in ")[2]) == ("ok", str(bundled))


async def test_a_custom_program_is_found_and_not_run(tmp_path: Path) -> None:
    there = write_program(tmp_path / "tools", "mine", f"touch {tmp_path / 'ran'}")
    assert await report(tmp_path, agent="command", command=["mine"], path=["tools"]) == ("ok", f"command: {there}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("soldiers", "reported"),
    [
        ({"agent": "codex", "path": ["tools"]}, "there is no program 'codex-acp'"),
        ({"agent": "aider", "path": ["tools"]}, "there is no program 'aider'"),
        ({"agent": "command"}, "soldiers.command is empty"),
        ({"agent": "command", "command": ["absent"]}, "there is no program 'absent'"),
        ({"agent": "gemini", "path": ["tools", "elsewhere"]}, "elsewhere, which is not a folder"),
        ({"agent": "gemini", "model": {"vendor": "openai"}}, "gemini uses models of gemini"),
    ],
)
async def test_settings_that_the_host_refuses_are_reported(
    tmp_path: Path, soldiers: dict[str, Any], reported: str
) -> None:
    # There is a program `codex`, but the host starts `codex-acp`.
    write_program(tmp_path / "tools", "codex", "echo codex-cli 0.166.0")
    status, found = await report(tmp_path, **soldiers)
    assert (status, reported in found) == ("fail", True), found


async def test_a_missing_key_extra_or_sandbox_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    _, found = await report(tmp_path, agent="claude")
    assert "there is no key for the model of claude: set ANTHROPIC_API_KEY" in found
    monkeypatch.setenv("PATH", str(tmp_path))
    status, found = await report(tmp_path, agent="claude", sandbox="strict")
    assert (status, "bwrap is not on PATH. What to do: " in found) == ("fail", True)
    monkeypatch.setitem(sys.modules, "acp", None)
    status, found = await report(tmp_path, agent="codex")
    assert (status, found) == ("fail", "codex needs a library that is not installed: pip install 'kingdom[acp]'")


async def test_an_agent_that_does_not_start_is_reported(tmp_path: Path) -> None:
    write_program(tmp_path / "tools", "gemini", "echo 'node: not found' >&2; exit 127")
    status, found = await report(tmp_path, agent="gemini", path=["tools"])
    assert (status, "127: node: not found" in found) == ("fail", True)

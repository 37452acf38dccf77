from pathlib import Path

import claude_agent_sdk
import msgspec
import pytest

from kingdom.realm import Realm
from kingdom.soldiers.settings import SoldierSettings
from tests.integration.doctor.scene import look, look_at, write_program

ON_PATH = ("codex", "gemini", "opencode", "aider")


async def test_agents_on_the_path_are_found_with_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(ON_PATH):
        write_program(tmp_path, name, f"echo {name}-cli v{number}.2.3 '(build 7)'")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await look(*ON_PATH)
    assert {name: finding.found for name, finding in found.items()} == {
        name: f"{number}.2.3 in {tmp_path / name}" for number, name in enumerate(ON_PATH)
    }


async def test_the_claude_of_its_sdk_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    monkeypatch.setenv("PATH", "/nowhere")
    finding = await look_at("claude")
    assert (finding.status, finding.found.partition(" in ")[2]) == ("ok", str(bundled))


async def test_an_agent_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path, "codex", "echo 'node: not found' >&2; exit 127")
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = await look_at("codex")
    assert (finding.status, "node: not found" in finding.found) == ("fail", True)
    assert finding.fix == "npm install --global @openai/codex"


async def test_only_the_agent_that_soldiers_run_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert {finding.status for finding in (await look("codex", "aider")).values()} == {"skipped"}
    realm = Realm(soldiers=msgspec.structs.replace(SoldierSettings(), agent="codex"))
    wanted = await look("codex", "aider", realm=realm)
    assert (wanted["codex"].status, wanted["aider"].status) == ("fail", "skipped")

"""The settings of soldiers give an agent its programs, its model and a git identity."""

import json
import os
import shutil
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kingdom.errors import Misconfigured
from kingdom.soldiers.agent_kinds import AGENT_KINDS, build_agent_environment
from kingdom.soldiers.agents.port import Launch, Prompt, TurnAnswer
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from kingdom.soldiers.host.host import ENVIRONMENT
from kingdom.soldiers.sandbox.programs import toolchain_programs, user_home
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.sandbox.vendors import Vendor
from kingdom.soldiers.settings import AgentName, ModelSettings, SoldierSettings
from kingdom.soldiers.workplace.agent_environment import Workplace
from kingdom.soldiers.workplace.host_folders import HostFolders
from tests.contract.agents.stage import AT_ONCE, updates_of
from tests.fakes.model.stub import ModelStub

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
SHELL = ("/bin/sh", "-e", "-s")
KEY = "a-key-of-nobody"


class HostSetup:
    """A host with one agent at a time, as settings describe it."""

    def __init__(self, folder: Path) -> None:
        self.folders = HostFolders(folder)
        self.folders.create()
        self.space = self.folders.work_space("general", "space")
        self.space.mkdir(parents=True)

    def workplace(self, settings: SoldierSettings) -> Workplace:
        return Workplace(
            agent_environment=build_agent_environment(settings, lambda _: None, set()),
            folders=self.folders,
            run_checkouts=RunCheckouts(self.folders.directory / "repositories"),
            workflow_id="wf-1",
            home_run="wf-1",
            space=self.space,
            checkouts=(),
            base_variables=ENVIRONMENT,
        )

    async def answer(self, prompt: str, *, agent: AgentName = "command", **options: Any) -> str:
        """Return the answer of an agent, which is a shell by default."""
        settings = SoldierSettings(agent=agent, **{"command": SHELL, **options})
        workplace = self.workplace(settings)
        async with AsyncExitStack() as stack:
            gate = await workplace.open_model_proxy("s1", None, stack)
            launch = Launch(
                soldier_id="s1",
                work_space=self.space,
                model="some",
                session=None,
                transcript=self.folders.transcript("s1"),
                errors=self.folders.errors("s1"),
                environment=workplace.program_environment(),
                mcp_servers=(),
                sandbox=workplace.sandbox(gate, await workplace.open_egress(stack)),
            )
            started = await AGENT_KINDS[agent].client(settings).start(launch)
            stack.push_async_callback(started.stop, AT_ONCE)
            end = (await updates_of(started, Prompt(id="t1#1", text=prompt)))[-1]
        assert isinstance(end, TurnAnswer)
        return end.text


@pytest.fixture
def host_setup(tmp_path: Path) -> HostSetup:
    return HostSetup(tmp_path / "h")


@pytest.fixture
async def model() -> AsyncIterator[ModelStub]:
    async with ModelStub() as model:
        yield model


def a_program(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


async def test_programs_of_a_folder_on_the_path_take_precedence_over_those_of_the_system(
    host_setup: HostSetup, tmp_path: Path
) -> None:
    a_program(tmp_path / "tools" / "uname", "#!/bin/sh\necho mine\n")
    assert await host_setup.answer("uname", path=(str(tmp_path / "tools"),)) == "mine"
    assert await host_setup.answer("uname") == "Linux"


async def test_a_missing_folder_on_the_path_is_reported(host_setup: HostSetup, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"soldiers\.path names .*nowhere, which is not a folder"):
        host_setup.workplace(SoldierSettings(path=(str(tmp_path / "nowhere"),)))


async def test_a_program_of_a_virtual_environment_runs_with_what_is_installed_there(
    host_setup: HostSetup, tmp_path: Path
) -> None:
    place = tmp_path / "venv"
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python3*/site-packages")
    (packages / "own_part.py").write_text("print('all there')\n")
    a_program(place / "bin" / "tool", f"#!{place}/bin/python\nimport own_part\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to(place / "bin" / "tool")
    assert await host_setup.answer("", command=(str(place / "bin" / "tool"),)) == "all there"
    assert await host_setup.answer("", command=(str(tmp_path / "bin" / "tool"),)) == "all there"
    assert await host_setup.answer("tool", path=(str(tmp_path / "bin"),)) == "all there"


async def test_agents_installed_by_npm_are_found_through_the_settings(host_setup: HostSetup, tmp_path: Path) -> None:
    settings = SoldierSettings(
        agent="codex",
        agents=os.path.relpath(tmp_path / "npm"),
        model=ModelSettings(key=KEY),
        sandbox=SandboxProfile.STRICT,
    )
    workplace = host_setup.workplace(settings)
    launch = Launch(
        soldier_id="s1",
        work_space=host_setup.space,
        model="some",
        session=None,
        transcript=host_setup.folders.transcript("s1"),
        errors=host_setup.folders.errors("s1"),
        environment=workplace.program_environment(),
        mcp_servers=(),
        sandbox=workplace.sandbox(),
    )
    with pytest.raises(Misconfigured, match=r"soldiers\.agents in kingdom\.yaml .*; .* to soldiers\.path"):
        await AGENT_KINDS["codex"].client(settings).start(launch)
    a_program(tmp_path / "npm" / "node_modules" / ".bin" / "codex-acp", f"#!{sys.executable}\nraise SystemExit(7)\n")
    with pytest.raises(Exception, match="exit code 7"):
        await AGENT_KINDS["codex"].client(settings).start(launch)


@pytest.mark.parametrize("profile", [SandboxProfile.DEV, SandboxProfile.OFF])
async def test_toolchains_in_the_home_of_the_user_are_on_the_path_only_in_dev_and_off(
    host_setup: HostSetup, profile: SandboxProfile
) -> None:
    strict = host_setup.workplace(SoldierSettings(agent="command")).program_environment()
    assert strict["PATH"] == ENVIRONMENT["PATH"]
    workplace = host_setup.workplace(SoldierSettings(agent="command", sandbox=profile))
    found = [*map(str, toolchain_programs(user_home()))]
    assert workplace.program_environment()["PATH"].split(":") == [*found, *ENVIRONMENT["PATH"].split(":")]


async def test_a_toolchain_in_the_home_of_the_user_runs_in_dev(host_setup: HostSetup) -> None:
    if not (user_home() / ".cargo" / "bin" / "cargo").exists():
        pytest.skip("cargo is not installed")
    assert (await host_setup.answer("cargo --version", sandbox=SandboxProfile.DEV)).startswith("cargo ")


async def test_an_agent_can_commit_in_a_repository_of_its_own(host_setup: HostSetup) -> None:
    commit = "git init -q r; cd r; git commit -q --allow-empty -m one; git log --format='%an <%ae> %cn <%ce>'"
    assert await host_setup.answer(commit) == "Kingdom <kingdom@localhost> Kingdom <kingdom@localhost>"


@pytest.mark.parametrize(
    ("vendor", "asked"),
    [
        (Vendor.ANTHROPIC, "$ANTHROPIC_BASE_URL/v1/messages/count_tokens"),
        (Vendor.OPENAI, "$OPENAI_API_BASE/chat/completions"),
        (Vendor.GEMINI, "$GOOGLE_GEMINI_BASE_URL/v1beta/models/some:countTokens"),
    ],
)
async def test_a_program_reaches_the_model_that_the_settings_name(
    host_setup: HostSetup, model: ModelStub, vendor: Vendor, asked: str
) -> None:
    settings = ModelSettings(vendor=vendor, url=model.url, key=KEY)
    messages = [{"role": "user", "content": "hello", "parts": [{"text": "hello"}]}]
    (host_setup.space / "body").write_text(json.dumps({"model": "some", "messages": messages, "contents": messages}))
    ask = f'curl -s -o answer -w "%{{http_code}}" -H "content-type: application/json" -d @body "{asked}"'
    assert await host_setup.answer(ask, model=settings) == "200"
    assert len(model.requests) == 1


async def test_allowed_hosts_give_an_agent_a_proxy_for_https_only(host_setup: HostSetup) -> None:
    ask = "curl -sS https://other.example.org/ 2>&1 || true; env | grep -i _proxy= | sort; curl -sS $ANY/ | head -1"
    reply = await host_setup.answer(f"ANY=http://127.0.0.1:8098; {ask}", egress=("Files.Example.org",))
    refused, *variables, plain = reply.splitlines()
    assert refused.endswith("CONNECT tunnel failed, response 403")
    proxy, inside = "http://127.0.0.1:8098", "127.0.0.1,localhost,::1"
    expected = {"HTTPS_PROXY": proxy, "https_proxy": proxy, "NO_PROXY": inside, "no_proxy": inside}
    assert dict(line.split("=", 1) for line in variables) == {**expected, "NODE_USE_ENV_PROXY": "1"}
    assert plain == "only https is forwarded, by CONNECT: use an https address, plain http is refused"
    assert "other.example.org" in host_setup.folders.egress_log("wf-1").read_text()
    assert await host_setup.answer("env | grep -ic proxy || true") == "0"


@pytest.mark.parametrize(
    ("agent", "model", "words"),
    [
        ("command", ModelSettings(key=KEY), r"set soldiers\.model\.vendor to one of anthropic, openai, gemini"),
        ("claude", ModelSettings(key=KEY, vendor=Vendor.OPENAI), "claude uses models of anthropic"),
        ("command", ModelSettings(vendor=Vendor.OPENAI), "set OPENAI_API_KEY"),
    ],
)
async def test_a_model_that_the_agent_cannot_use_is_reported(
    host_setup: HostSetup, agent: AgentName, model: ModelSettings, words: str
) -> None:
    with pytest.raises(Misconfigured, match=words):
        host_setup.workplace(SoldierSettings(agent=agent, model=model))


async def test_a_missing_program_is_reported_with_its_setting(host_setup: HostSetup) -> None:
    with pytest.raises(Misconfigured, match=r"name its folder in soldiers\.path of kingdom\.yaml"):
        await host_setup.answer("", command=("not-there",))


@pytest.mark.parametrize(
    ("agent", "library", "extra"), [("claude", "claude_agent_sdk", "claude"), ("codex", "acp", "acp")]
)
def test_a_missing_library_is_reported_before_any_agent_starts(
    host_setup: HostSetup, monkeypatch: pytest.MonkeyPatch, agent: AgentName, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Misconfigured, match=rf"{agent} needs a library .*: pip install 'kingdom\[{extra}\]'"):
        host_setup.workplace(SoldierSettings(agent=agent, model=ModelSettings(key=KEY)))


@pytest.mark.parametrize("word", ["mytool --config $HOME/x", "mytool --cost $1"])
def test_an_unknown_placeholder_in_the_command_is_reported_before_any_agent_starts(word: str) -> None:
    with pytest.raises(
        Misconfigured, match=r"soldiers\.command: .* none of \$model, \$prompt, .*; write \$\$ for a dollar"
    ):
        AGENT_KINDS["command"].client(SoldierSettings(agent="command", command=("sh", "-c", word)))
    AGENT_KINDS["command"].client(
        SoldierSettings(agent="command", command=("sh", "-c", "tool $$HOME $prompt_file ${model}"))
    )


@pytest.mark.parametrize("agent", ["scripted", "claude"])
def test_without_bubblewrap_no_host_starts_unless_the_sandbox_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, agent: AgentName
) -> None:
    a_program(tmp_path / "dnf", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    reported = r"bwrap is not on PATH\. What to do: sudo dnf install bubblewrap\. Or write `sandbox: \"off\"` under"
    with pytest.raises(Misconfigured, match=reported):
        build_agent_environment(SoldierSettings(agent=agent), lambda _: KEY, set())
    off = SoldierSettings(agent=agent, sandbox=SandboxProfile.OFF)
    assert build_agent_environment(off, lambda _: KEY, set()).profile is SandboxProfile.OFF


@pytest.mark.parametrize("profile", [SandboxProfile.STRICT, SandboxProfile.DEV])
def test_a_bubblewrap_that_cannot_create_namespaces_is_reported_before_any_agent_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: SandboxProfile
) -> None:
    a_program(tmp_path / "bwrap", "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Misconfigured, match=r"ended with 1: .* Permission denied\. What to do: run `kingdom doctor`"):
        build_agent_environment(SoldierSettings(sandbox=profile), lambda _: None, set())


async def test_an_agent_without_allowed_hosts_has_no_network(host_setup: HostSetup) -> None:
    async with AsyncExitStack() as stack:
        assert await host_setup.workplace(SoldierSettings()).open_model_proxy("s1", None, stack) is None

"""Allowed hosts for all programs of a run: the setup of its checkouts, its agent, and its checks."""

import shutil
import sys
from pathlib import Path

import pytest

from kingdom.soldiers.agents.command.client import CommandAgentClient
from kingdom.soldiers.agents.command.command import CommandTemplate
from kingdom.soldiers.sandbox import egress
from kingdom.soldiers.sandbox.egress import Egress
from kingdom.soldiers.sandbox.egress_ledger import read_attempts
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.checkout_setup import CheckoutSetup
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_scene import APP, HostScene, task, work
from tests.integration.soldiers.web import make_certificate, serving

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.parametrize("backend", ["files"], indirect=True),
]
ADDRESS = "127.0.0.2"
NAMES = [f"{name}.example.org" for name in ("setup", "agent", "check")]
# The client runs in the sandbox and knows only the proxy variables, like any program.
FETCH = f"{sys.executable} -I -c 'import ssl, sys, urllib.request as r; c = ssl._create_unverified_context()\n"
FETCH += 'print(r.urlopen("https://" + sys.argv[1], context=c).read().decode())\''


async def test_setup_agent_and_checks_reach_named_hosts_and_no_others(
    scene: HostScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "is_public", lambda address: address == ADDRESS)
    async with serving(make_certificate(tmp_path / "tls", *NAMES), ADDRESS) as web:
        setup, agent, check = (f"{FETCH} {name}:{web.port}" for name in NAMES)
        agent_environment = AgentEnvironment(
            profile=SandboxProfile.STRICT,
            egress=Egress(NAMES, resolve=lambda _: [ADDRESS], port=web.port),
            checkout_setup=CheckoutSetup(setup={APP: f"{setup} && ! {FETCH} other.example.org:{web.port}"}),
        )
        client = CommandAgentClient(CommandTemplate(argv=("/bin/sh", "-ec", f"cat > prompt; {agent}")))
        await scene.start_host(client=client, agent_environment=agent_environment)
        run = await scene.begin(work("build", task(), verify=(check,)))
        done = await scene.until(run, WorkflowStatus.COMPLETED)
    attempts = list(read_attempts(scene.folders().egress_log(done.id)))
    assert [each.host for each in attempts if each.outcome == "opened"] == NAMES
    [refused] = [each for each in attempts if each.outcome == "refused"]
    assert (refused.host, refused.reason) == (
        "other.example.org",
        "other.example.org is not in soldiers.egress of kingdom.yaml",
    )

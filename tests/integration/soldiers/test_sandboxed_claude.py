"""The real Claude Code in a sandbox: it works, and never sees the key that pays for it."""

import shutil
from pathlib import Path

import pytest

from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor
from tests.fakes.model.stub import ModelStub
from tests.fakes.scripts import scripted
from tests.integration.soldiers.claude_code import ask_claude

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

KEY = "sk-the-real-one"
# Everything readable of a process: environment, arguments, open files and memory.
LOOK_EVERYWHERE = (
    "for process in /proc/[0-9]*; do cat $process/environ $process/cmdline; ls -l $process/fd; done > seen 2>/dev/null;"
    " env >> seen; find / -xdev -type f -size -200k -newermt '-1 day' -not -path '/proc/*' -not -path '/usr/*'"
    " -exec cat {} + >> seen 2>/dev/null; true"
)


@pytest.mark.parametrize("profile", [SandboxProfile.STRICT, SandboxProfile.DEV])
async def test_claude_works_through_the_proxy_and_never_sees_the_key(tmp_path: Path, profile: SandboxProfile) -> None:
    work = tmp_path / "work"
    work.mkdir()
    prompt = scripted({"write": "hello.txt", "text": "hello"}, {"run": LOOK_EVERYWHERE}, {"answer": "done"})
    async with (
        ModelStub() as stub,
        ModelProxy(
            tmp_path / "gate",
            [Upstream(vendor=Vendor.ANTHROPIC, url=stub.url, key=KEY)],
            on_loopback=profile is SandboxProfile.DEV,
        ) as proxy,
    ):
        sandbox = Sandbox(profile=profile, writable=(work,), model_socket=proxy.socket, limits=AGENT_LIMITS)
        result = await ask_claude(prompt, work, sandbox, url=proxy.url)
        assert proxy.refused == 0
    assert (result["is_error"], result["result"]) == (False, "done")
    assert (work / "hello.txt").read_text().strip() == "hello"
    assert {request.headers.get("x-api-key") for request in stub.asked} == {KEY}
    seen = (work / "seen").read_bytes()
    assert b"ANTHROPIC_BASE_URL=http://127.0.0.1:" in seen
    assert KEY.encode() not in seen

"""A stranger's branch under the settings that `kingdom init` writes: the programs of the branch reach nothing else."""

import shutil
from pathlib import Path

import msgspec
import pytest

from kingdom.cli.setup.init_files import settings_text
from kingdom.realm import read_realm
from kingdom.soldiers.agent_kinds import AGENT_KINDS, build_agent_environment
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.settings import SoldierSettings
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_scene import APP, HostScene, task, work
from tests.integration.soldiers.sources import run

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
KEY = "OPERATOR-PRIVATE-KEY-4711"
DOORS = ("setup", "agent", "check")


def settings_of_init(folder: Path) -> SoldierSettings:
    file = folder / "kingdom.yaml"
    file.write_text(settings_text("file:realm", "UTC", None))
    return read_realm(file).soldiers


@pytest.mark.parametrize("backend", ["files"], indirect=True)
@pytest.mark.parametrize("profile", [None, SandboxProfile.OFF], ids=["as init writes it", "off"])
async def test_a_hostile_branch_reads_and_writes_nothing_of_the_operator_unless_the_sandbox_is_off(
    scene: HostScene, tmp_path: Path, profile: SandboxProfile | None
) -> None:
    settings = settings_of_init(tmp_path)
    assert (settings.agent, settings.sandbox) == ("scripted", SandboxProfile.STRICT)
    if profile:
        settings = msgspec.structs.replace(settings, sandbox=profile)
    operator = tmp_path / "operator"
    operator.mkdir()
    (operator / "id_ed25519").write_text(KEY)
    source = scene.folder / "sources" / APP
    (source / ".kingdom").mkdir()
    (source / ".kingdom" / "setup.sh").write_text("sh steal.sh setup\n")
    (source / ".gitignore").write_text("*.seen\n")
    (source / "steal.sh").write_text(
        f'cd "$(dirname "$0")"; exec 2>/dev/null; cat {operator}/id_ed25519 >"$1.seen"; touch {operator}/"$1"; :\n'
    )
    run("add", "--all", cwd=source)
    run("commit", "--quiet", "-m", "hostile", cwd=source)
    await scene.start_host(
        client=AGENT_KINDS[settings.agent].client(settings),
        agent_environment=build_agent_environment(settings, lambda _: None, set()),
    )
    hostile = work("hostile", task({"run": f"sh {APP}/steal.sh agent"}), verify=(f"sh {APP}/steal.sh check",))
    done = await scene.until(await scene.begin(hostile), WorkflowStatus.COMPLETED)
    seen = {door: (scene.tree(done) / f"{door}.seen").read_text() for door in DOORS}
    planted = {file.name for file in operator.iterdir()} - {"id_ed25519"}
    assert seen == dict.fromkeys(DOORS, KEY if profile else "")
    assert planted == ({*DOORS} if profile else set())

"""What a program in a sandbox can see, and how it is killed."""

import asyncio
import errno
import logging
import os
import resource
import shutil
import signal
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.log_output import configure_logs
from kingdom.soldiers.checkouts.checkout import GitPolicy, checkout_paths
from kingdom.soldiers.checkouts.git import IDENTITY
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.soldiers.processes.program import ProgramResult, run_program, start_program
from kingdom.soldiers.sandbox.agent_sandbox import build_agent_sandbox
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.resource_limits import ControlGroups, apply_rlimits, create_control_groups
from kingdom.soldiers.sandbox.sandbox import ResourceLimits, Sandbox, SandboxProfile
from tests.integration.soldiers.processes import MARK, marked, until_runs
from tests.integration.soldiers.sources import a_tree, bare, run
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
PATIENCE = timedelta(seconds=PATIENCE_SECONDS)
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


async def shell(command: str, work: Path, sandbox: Sandbox | None = None, **environment: str) -> ProgramResult:
    sandbox = sandbox or Sandbox(profile=SandboxProfile.STRICT, writable=(work,))
    environment = {**ENVIRONMENT, "HOME": str(work), **environment}
    argv = ["/bin/sh", "-c", command]
    return await run_program(argv, cwd=work, environment=environment, timeout=PATIENCE, sandbox=sandbox)


async def test_a_program_writes_only_where_it_may(work: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    for place in ("/", "/usr", "/etc", "/dev", "/proc"):
        assert (await shell(f"echo x > {place}/planted", work)).code != 0
    await shell(f"echo x > {tmp_path}/planted; echo x > /run/planted", work)
    assert not [place for place in ("/", "/run", tmp_path) if Path(place, "planted").exists()]
    assert (await shell(f"cat {tmp_path}/secret", work)).code == 1
    assert (await shell("echo mine > file; cat file", work)).output == "mine\n"
    assert (work / "file").read_text() == "mine\n"


async def test_a_program_is_an_unprivileged_user_and_sees_only_its_own_processes(work: Path) -> None:
    finished = await shell("id -u; whoami; uname -n; ls -d /proc/[0-9]* | wc -l; grep CapEff /proc/self/status", work)
    uid, name, machine, processes, capabilities = finished.output.splitlines()
    assert (uid, name, machine, capabilities) == ("1000", "agent", "soldier", "CapEff:\t0000000000000000")
    assert int(processes) < 6


@pytest.mark.parametrize("profile", [SandboxProfile.STRICT, SandboxProfile.DEV])
async def test_a_program_can_resolve_the_name_of_its_machine(work: Path, profile: SandboxProfile) -> None:
    sandbox = Sandbox(profile=profile, writable=(work,))
    find = "import socket; print(socket.gethostbyname(socket.gethostname()), socket.gethostbyname('localhost'))"
    finished = await shell(f'/usr/bin/env python3 -c "{find}"', work, sandbox)
    assert finished.output == "127.0.0.1 127.0.0.1\n"


async def test_the_hosts_file_of_the_machine_is_visible_in_dev(work: Path) -> None:
    dev = Sandbox(profile=SandboxProfile.DEV, writable=(work,))
    assert (await shell("cat /etc/hosts", work, dev)).output.startswith(Path("/etc/hosts").read_text())


async def test_settings_of_maven_and_npm_are_visible_in_dev_and_not_in_strict(work: Path) -> None:
    there = [path for path in ("/etc/maven/settings.xml", "/etc/npmrc") if Path(path).exists()]
    dev = Sandbox(profile=SandboxProfile.DEV, writable=(work,))
    assert (await shell("cat /etc/maven/settings.xml /etc/npmrc 2> /dev/null", work)).output == ""
    assert (await shell("ls /etc/maven/settings.xml /etc/npmrc 2> /dev/null", work, dev)).output.split() == there


async def test_languages_find_their_settings(work: Path) -> None:
    names = ("java-*", "maven/m2.conf", "maven/logging", "php", "fonts", "gitconfig")
    there = [str(path) for name in names for path in Path("/etc").glob(name)]
    if not there:
        pytest.skip("this machine has none of these")
    finished = await shell(f"ls -d {' '.join(there)}; touch {there[0]}", work)
    assert finished.output.splitlines()[: len(there)] == sorted(there)
    assert finished.code != 0


async def test_java_runs(work: Path) -> None:
    if shutil.which("java", path=ENVIRONMENT["PATH"]) is None:
        pytest.skip("java is not installed")
    (work / "Who.java").write_text(
        "class Who { public static void main(String[] a) throws Exception {"
        " java.security.SecureRandom.getInstanceStrong();"
        " System.out.println(java.net.InetAddress.getLocalHost()); } }"
    )
    finished = await shell("java -XX:TieredStopAtLevel=1 Who.java", work)
    assert finished.output == "soldier/127.0.0.1\n"


async def test_a_program_has_exactly_its_environment(work: Path) -> None:
    finished = await shell("tr '\\0' '\\n' < /proc/1/environ; env", work, GIVEN="yes")
    given = {"GIVEN=yes", "PATH=/usr/bin:/bin", f"HOME={work}", f"PWD={work}"}
    assert set(finished.output.splitlines()) == given


async def test_a_program_reaches_no_address(work: Path) -> None:
    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        assert "refused" in (await shell(f'/usr/bin/env python3 -c "{connect}"', work)).output
        dev = Sandbox(profile=SandboxProfile.DEV, writable=(work,))
        assert (await shell(f'/usr/bin/env python3 -c "{connect}"', work, dev)).code == 0


async def test_a_program_has_only_sockets_that_namespaces_isolate_and_no_io_uring(
    work: Path,
) -> None:
    make_socket = {"x86_64": 41, "aarch64": 198}.get(os.uname().machine)
    if make_socket is None:
        pytest.skip("there is no filter for this architecture")
    # The kernel reads only the lower 32 bits of the family, so bits above them must not bypass the filter.
    probe = f"""
import ctypes, socket
call = ctypes.CDLL(None, use_errno=True).syscall
made = lambda family, kind: call({make_socket}, ctypes.c_long(family | 1 << 32), kind, 0) > 0
print(*(family for family in range(50) if made(family, 1) or made(family, 2)))
print(len(socket.socketpair()), call(425, 4, bytes(120)), ctypes.get_errno())
"""
    (work / "probe.py").write_text(probe)
    families, others = (await shell("/usr/bin/env python3 probe.py", work)).output.splitlines()
    local, ipv4, ipv6, netlink = 1, 2, 10, 16
    assert {local, ipv4, netlink} <= {*map(int, families.split())} <= {local, ipv4, ipv6, netlink}
    assert others == f"2 -1 {errno.ENOSYS}"


async def test_the_access_of_the_innermost_listed_folder_applies(work: Path) -> None:
    for name in ("kept", "kept/open"):
        (work / name).mkdir()
    sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(work, work / "kept" / "open"), readable=(work / "kept",))
    finished = await shell("touch kept/a; touch kept/open/a && touch a && mv kept gone", work, sandbox)
    assert finished.code != 0
    assert sorted(path.name for path in work.rglob("*")) == ["a", "a", "kept", "open"]


async def test_no_program_starts_if_a_listed_folder_has_become_a_link(work: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (work / "reports").symlink_to(tmp_path / "secret")
    sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(work,), readable=(work / "reports",))
    with pytest.raises(ProgramFailed, match="is a link"):
        await shell("true", work, sandbox)


async def test_traffic_is_sent_to_the_proxy_and_the_exit_code_of_the_program_is_returned(
    work: Path, tmp_path: Path
) -> None:
    async def answer_call(body: bytes) -> bytes:
        return b'{"heard": ' + body + b"}"

    async with ModelProxy(tmp_path / "gate", [], on_tool_call=answer_call) as gate:
        sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(work,), model_socket=gate.socket)
        say = f"import urllib.request as r; print(r.urlopen('{sandbox.url}/voice', b'[1]').read().decode())"
        finished = await shell(f'/usr/bin/env python3 -c "{say}"; exit 7', work, sandbox)
    assert finished == ProgramResult(7, '{"heard": [1]}\n')


async def test_a_killed_program_leaves_no_process(work: Path, tmp_path: Path) -> None:
    mark = uuid4().hex
    async with ModelProxy(tmp_path / "gate", []) as gate:
        sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(work,), model_socket=gate.socket)
        program = await start_program(
            ["/bin/sh", "-c", "trap '' TERM INT; setsid sh -c 'setsid sleep 921 & exit 0'; sleep 922"],
            cwd=work,
            environment={**ENVIRONMENT, MARK: mark},
            errors=tmp_path / "errors",
            sandbox=sandbox,
        )
        await until_runs(mark, "sleep 921")
        await until_runs(mark, "sleep 922")
        assert "SIGKILL" in describe_exit(await program.kill())
    assert marked(mark) == []


async def test_daemons_end_with_a_program_that_ends_by_itself(work: Path) -> None:
    mark = uuid4().hex
    assert (await shell("setsid sleep 923 & exit 0", work, KINGDOM_TEST_MARK=mark)).code == 0
    assert marked(mark) == []


async def test_a_program_dies_with_its_parent(work: Path) -> None:
    mark = uuid4().hex
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.soldiers.sandboxed_child",
        str(work),
        mark,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert await asyncio.wait_for(child.stdout.readline(), PATIENCE_SECONDS) == b"ready\n"
        await until_runs(mark, "sleep 924")
    finally:
        child.send_signal(signal.SIGKILL)
        await child.wait()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while marked(mark):  # noqa: ASYNC110 - the kernel sends no notification
            await asyncio.sleep(0.01)


async def test_a_program_cannot_exceed_its_resource_limits(work: Path) -> None:
    limits = ResourceLimits(memory_bytes=300 << 20, processes=40, file_bytes=1 << 20)
    sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(work,), limits=limits)
    assert "size limit exceeded" in (await shell("head -c 2000000 /dev/zero > big", work, sandbox)).output
    assert (work / "big").stat().st_size <= 1 << 20
    if await _can_use_control_groups(limits):
        assert (await shell('/usr/bin/env python3 -c "bytearray(600 << 20)"', work, sandbox)).code != 0
    forks = "for n in $(seq 200); do sleep 925 & done; ls -d /proc/[0-9]* | wc -l"
    if os.getuid() or await _can_use_control_groups(limits):
        assert "fork" in (await shell(forks, work, sandbox)).output


def test_without_a_control_group_rlimits_apply_except_for_memory() -> None:
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        apply_rlimits(child, ResourceLimits(memory_bytes=1 << 30, processes=40, file_bytes=1 << 20, cpu_seconds=60))
        kinds = (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)
        assert [resource.prlimit(child, kind)[1] for kind in kinds] == [40, 1 << 20, 60]
        # Memory has no rlimit, because sanitizers reserve terabytes that they never use.
        for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
            assert resource.prlimit(child, kind) == resource.getrlimit(kind)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def test_no_control_group_is_left(work: Path) -> None:
    limits = ResourceLimits(memory_bytes=300 << 20, processes=40)
    sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(work,), limits=limits)
    assert (await shell("true", work, sandbox)).code == 0
    assert not list(Path("/sys/fs/cgroup").glob(f"**/kingdom-{os.getpid()}-*"))


async def _can_use_control_groups(limits: ResourceLimits) -> bool:
    groups, others = create_control_groups(limits)
    await groups.remove()
    return others == ResourceLimits(file_bytes=limits.file_bytes)


async def test_removing_control_groups_does_not_wait_for_one_that_is_gone(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    async with asyncio.timeout(0):
        await ControlGroups([tmp_path / "gone", there]).remove()
    assert not there.exists()


async def test_an_agent_reads_the_repository_but_only_kingdom_commits(
    trees: RunCheckouts, host: Path, source: Path, work: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    sandbox = _of(tree, host, work)
    finished = await shell(f"cd {tree.path} && git log --oneline && echo x > new && git status --short", work, sandbox)
    assert finished.code == 0
    assert "?? new" in finished.output
    for attempt in (
        "git add new",
        "git config core.fsmonitor /bin/true",
        "rm .git",
        "mv .git away",
        "echo > .git",
    ):
        assert (await shell(f"cd {tree.path} && {attempt}", work, sandbox)).code != 0
    commit = (await trees.commit([tree], "by the house"))[tree.id]
    assert commit != await trees.base_commit(tree)


async def test_an_agent_that_may_commit_does_so_in_a_git_directory_of_its_own(
    host: Path, source: Path, work: Path
) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True))
    tree, other = a_tree(host, source), a_tree(host, source, "tree2")
    await trees.prepare([tree, other])
    before = run("for-each-ref", cwd=bare(host, tree))
    sandbox = _of(tree, host, work, may_commit=True)
    commit = f"cd {tree.path} && echo x > new && git add new && git commit -qm mine && git branch elsewhere"
    others = f"git update-ref refs/heads/{other.branch} HEAD; git update-ref refs/remotes/origin/main HEAD"
    finished = await shell(f"{commit} && {others}", work, sandbox, **IDENTITY)
    assert finished.code == 0, finished.output
    for attempt in ("git config a.b c", "echo /tmp > $(git rev-parse --git-dir)/commondir"):
        assert (await shell(f"cd {tree.path} && {attempt}", work, sandbox)).code != 0
    assert run("for-each-ref", cwd=bare(host, tree)) == before
    (tree.path / "late").touch()
    commits = await trees.commit([tree], "by the house")
    assert run("log", "-2", "--format=%s", tree.branch, cwd=bare(host, tree)).splitlines() == ["by the house", "mine"]
    assert commits[tree.id] == run("rev-parse", tree.branch, cwd=bare(host, tree))
    assert run("rev-parse", other.branch, cwd=bare(host, tree)) == await trees.base_commit(other)


async def test_an_agent_is_not_started_where_another_has_replaced_the_pointer(
    trees: RunCheckouts, host: Path, source: Path, work: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / ".git").unlink()
    (tree.path / ".git").symlink_to(source / ".git")
    assert (await shell("true", work, _of(tree, host, work))).code != 0
    # Every operation of the host on the checkout repairs it.
    await trees.commit([tree], "work")
    assert (await shell("true", work, _of(tree, host, work))).code == 0


def test_starting_an_agent_without_a_sandbox_logs_a_warning(work: Path) -> None:
    configure_logs(json=True, level=logging.WARNING)
    try:
        with capture_logs() as logs:
            build_agent_sandbox(SandboxProfile.OFF, space=work, home=work, checkouts=[], reports=work)
    finally:
        configure_logs(json=True, level=logging.ERROR)
    assert "without a sandbox" in logs[0]["event"]


async def test_a_sandbox_needs_bubblewrap(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(work))
    with pytest.raises(Misconfigured, match="install bubblewrap"):
        await shell("true", work)


def _of(tree: CheckoutSpec, host: Path, work: Path, *, may_commit: bool = False) -> Sandbox:
    return build_agent_sandbox(
        SandboxProfile.STRICT,
        space=work,
        home=work,
        checkouts=[checkout_paths(tree.path, bare(host, tree) / "objects")],
        reports=host / "reports",
        may_commit=may_commit,
    )

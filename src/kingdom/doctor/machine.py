"""Check the machine: Python, git, bubblewrap, the sandbox, open files, inotify, the clock and the load."""

import ctypes
import errno
import os
import resource
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from kingdom.court.chamberlain.health import DISK, HealthLevel, HealthState, next_health, threshold_settings
from kingdom.court.chamberlain.sensor import MachineSensor
from kingdom.doctor.check import CheckResult, fail, ok, run_in_thread, skipped, warn
from kingdom.doctor.context import CheckContext
from kingdom.doctor.programs import describe_failure, find_version, parse_version, run_program
from kingdom.soldiers.agent_kinds import NO_SANDBOX_CONSEQUENCE
from kingdom.soldiers.sandbox.probe import find_sandbox_problem
from kingdom.soldiers.sandbox.programs import how_to_install
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.settings import SoldierSettings

PYTHON_OLDEST = (3, 11)
# The first version with `git fetch --no-write-fetch-head`.
GIT_OLDEST = (2, 29)
_OPEN_FILES_LEAST = 1024
_INSTANCES_LEAST, _WATCHES_LEAST = 64, 4096
# Kernel settings that can forbid user namespaces: the value that forbids them, and the command that allows them.
_NAMESPACE_SETTINGS = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    "kernel/unprivileged_userns_clone": ("0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    "user/max_user_namespaces": ("0", "sudo sysctl user.max_user_namespaces=10000"),
}
_SYSCTL = Path("/proc/sys")
_TRY_BUBBLEWRAP = "bwrap --ro-bind / / --unshare-all --proc /proc true"
# A clock before this date was never set.
_NOT_BEFORE = datetime(2025, 1, 1, tzinfo=UTC)


async def check_python(_: CheckContext) -> CheckResult:
    """Check the version of the running Python."""
    return judge_python(tuple(sys.version_info[:3]))


def judge_python(version: tuple[int, ...]) -> CheckResult:
    """Judge whether a version of Python is new enough."""
    summary, oldest = ".".join(map(str, version)), ".".join(map(str, PYTHON_OLDEST))
    if version >= PYTHON_OLDEST:
        return ok(summary)
    return fail(f"{summary}, and {oldest} is needed", f"uv venv --python {oldest} && uv pip install kingdom")


async def check_git(_: CheckContext) -> CheckResult:
    """Check whether git is installed and new enough."""
    if shutil.which("git") is None:
        return fail("git is not on PATH, so no agent gets a checkout", how_to_install("git"))
    code, output = await run_program("git", "--version")
    version, oldest = find_version(output), ".".join(map(str, GIT_OLDEST))
    if code or not version:
        return fail(describe_failure("git --version", code, output), how_to_install("git"))
    if parse_version(version) < GIT_OLDEST:
        return fail(f"{version}, and {oldest} is needed", how_to_install("git"))
    return ok(version)


async def check_bubblewrap(context: CheckContext) -> CheckResult:
    """Check whether bubblewrap can run a program in a sandbox."""
    profile = context.realm.soldiers.sandbox
    if shutil.which("bwrap") is None:
        if profile is SandboxProfile.OFF:
            return warn("bwrap is not on PATH: processes may outlive their agent", how_to_install("bubblewrap"))
        return fail("bwrap is not on PATH, and without a sandbox no agent is started", how_to_install("bubblewrap"))
    if reason := await run_in_thread(lambda: find_sandbox_problem(profile)):
        return fail(f"bwrap cannot create a sandbox, so no agent can be started: {reason}", _namespaces_fix())
    return ok(f"{find_version((await run_program('bwrap', '--version'))[1])}, and it can create sandboxes")


async def check_sandbox(context: CheckContext) -> CheckResult:
    """Check which sandbox profile the agents get."""
    if context.file_error and context.realm.soldiers == SoldierSettings():
        return skipped("the settings cannot be read, so the profile is unknown")
    profile = context.realm.soldiers.sandbox
    if profile is SandboxProfile.OFF:
        found = (
            "soldiers.sandbox is off: agents, setup scripts and checks run WITHOUT A SANDBOX, which"
            f" {NO_SANDBOX_CONSEQUENCE}"
        )
        return warn(found, "set soldiers.sandbox to strict in kingdom.yaml")
    return ok(f"{profile}, for every agent, setup script and check")


async def check_open_files(_: CheckContext) -> CheckResult:
    """Check how many files a process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES_LEAST:
        return ok(f"a process may open {'any number of' if soft == resource.RLIM_INFINITY else soft} files")
    more = hard if hard != resource.RLIM_INFINITY and hard >= _OPEN_FILES_LEAST else 4 * _OPEN_FILES_LEAST
    return warn(f"a process may open only {soft} files", f"ulimit -n {more}")


async def check_inotify(_: CheckContext) -> CheckResult:
    """Check whether one more process can watch files for changes."""
    if not sys.platform.startswith("linux"):
        return skipped("this system has no inotify")
    number = await run_in_thread(_try_watching)
    instances, watches = (_inotify_limit(f"max_user_{name}") for name in ("instances", "watches"))
    limits = f"{instances} instances and {watches} watches per user"
    if number:
        found = f"no more processes can watch files: {os.strerror(number)} ({limits})"
        return fail(found, "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288")
    if instances < _INSTANCES_LEAST or watches < _WATCHES_LEAST:
        return warn(
            f"only {limits}", "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"
        )
    return ok(limits)


async def check_clock(context: CheckContext) -> CheckResult:
    """Check whether the clock is set, and report the time zone of the court."""
    now = context.clock()
    offset = now.astimezone().strftime("%z")
    summary = f"{now.isoformat(sep=' ', timespec='seconds')}; this machine is at UTC{offset[:3]}:{offset[3:]}"
    if now < _NOT_BEFORE:
        return fail(f"{summary}: this clock was never set", "sudo timedatectl set-ntp true")
    return ok(f"{summary}, the court uses {context.realm.time_zone}")


async def check_load(context: CheckContext) -> CheckResult:
    """Check whether the load of processors and memory allows new work; the disk has its own check."""
    # The disk of the root directory is not remote, so reading its usage does not block.
    sensor = MachineSensor(Path("/"))
    used = {metric: value for metric, value in (await sensor.read()).items() if metric != DISK}
    health, _ = next_health(HealthState(), sensor.name, used, context.clock(), context.realm.chamberlain.health)
    summary = ", ".join(f"{metric}: {value:.0f}" for metric, value in used.items())
    if health.level.rank < HealthLevel.ORANGE.rank:
        return ok(summary)
    stops = (health.stop_level or health.level).rank >= HealthLevel.ORANGE.rank
    effect = "no new work starts" if stops else "one run at a time starts"
    fix = f"end other programs here, or raise chamberlain.health.{threshold_settings(health.level)} in kingdom.yaml"
    return warn(f"{summary}: {effect} while the machine is this busy", fix)


def _namespaces_fix() -> str:
    for name, (forbidding, command) in _NAMESPACE_SETTINGS.items():
        file = _SYSCTL / name
        if file.exists() and file.read_text().strip() == forbidding:
            return command
    return f"read the output of `{_TRY_BUBBLEWRAP}`, and allow user namespaces"


def _inotify_limit(name: str) -> int:
    return int((_SYSCTL / "fs/inotify" / name).read_text())


def _try_watching() -> int:
    """Watch a directory for a moment; return the errno, or 0 on success."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        return ctypes.get_errno()
    try:
        watched = library.inotify_add_watch(descriptor, b"/", 0x100)
        return ctypes.get_errno() or errno.ENOSPC if watched < 0 else 0
    finally:
        os.close(descriptor)

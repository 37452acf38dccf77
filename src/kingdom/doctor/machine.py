"""The machine: Python, git, bubblewrap, the sandbox, open files, inotify, the clock, what is left of it."""

import asyncio
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
from kingdom.doctor.check import Verdict, fail, in_thread, ok, skipped, warn
from kingdom.doctor.patient import Patient
from kingdom.doctor.programs import as_numbers, how_it_ended, said_by, version_in
from kingdom.soldiers.kinds import NO_SANDBOX
from kingdom.soldiers.sandbox.programs import how_to_install
from kingdom.soldiers.sandbox.sandbox import Profile
from kingdom.soldiers.sandbox.trial import why_no_sandbox
from kingdom.soldiers.settings import SoldierSettings

PYTHON_OLDEST = (3, 11)
# The first one whose `fetch` knows --no-write-fetch-head.
GIT_OLDEST = (2, 29)
_OPEN_FILES_LEAST = 1024
_INSTANCES_LEAST, _WATCHES_LEAST = 64, 4096
_NO_NAMESPACES = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    "kernel/unprivileged_userns_clone": ("0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    "user/max_user_namespaces": ("0", "sudo sysctl user.max_user_namespaces=10000"),
}
_SYSTEM = Path("/proc/sys")
_TRY_BUBBLEWRAP = "bwrap --ro-bind / / --unshare-all --proc /proc true"
# Nobody's clock was right before this version was written.
_NOT_BEFORE = datetime(2025, 1, 1, tzinfo=UTC)
# Long enough that the other looks, which run meanwhile, weigh little.
_LOAD_SECONDS = 0.5


async def python(_: Patient) -> Verdict:
    """Look at the Python that runs this."""
    return judge_python(tuple(sys.version_info[:3]))


def judge_python(version: tuple[int, ...]) -> Verdict:
    """Return whether a version of Python will do."""
    words, oldest = ".".join(map(str, version)), ".".join(map(str, PYTHON_OLDEST))
    if version >= PYTHON_OLDEST:
        return ok(words)
    return fail(f"{words}, and {oldest} is needed", f"uv venv --python {oldest} && uv pip install kingdom")


async def git(_: Patient) -> Verdict:
    """Look for a git that knows what we ask of it."""
    if shutil.which("git") is None:
        return fail("it is not on PATH: no agent gets a checkout", how_to_install("git"))
    code, words = await said_by("git", "--version")
    version, oldest = version_in(words), ".".join(map(str, GIT_OLDEST))
    if code or not version:
        return fail(how_it_ended("git --version", code, words), how_to_install("git"))
    if as_numbers(version) < GIT_OLDEST:
        return fail(f"{version}, and {oldest} is needed", how_to_install("git"))
    return ok(version)


async def bubblewrap(patient: Patient) -> Verdict:
    """Look whether what agents run can be put into a sandbox, by putting a program into one."""
    profile = patient.realm.soldiers.sandbox
    if shutil.which("bwrap") is None:
        if profile is Profile.OFF:
            return warn("it is not on PATH: what an agent leaves running may outlive it", how_to_install("bubblewrap"))
        return fail("it is not on PATH, and without a sandbox no agent is started", how_to_install("bubblewrap"))
    if reason := await in_thread(lambda: why_no_sandbox(profile)):
        return fail(f"it cannot make a sandbox, so no agent can be started: {reason}", _namespaces_fix())
    return ok(f"{version_in((await said_by('bwrap', '--version'))[1])}, and it makes sandboxes")


async def sandbox(patient: Patient) -> Verdict:
    """Look how much agents are kept from."""
    if patient.file_trouble and patient.realm.soldiers == SoldierSettings():
        return skipped("the settings cannot be read, so nobody knows whether agents have one")
    profile = patient.realm.soldiers.sandbox
    if profile is Profile.OFF:
        found = f"soldiers.sandbox is off: agents, setup scripts and checks run WITHOUT A SANDBOX, which {NO_SANDBOX}"
        return warn(found, "set soldiers.sandbox to strict in kingdom.yaml")
    return ok(f"{profile}, for every agent, setup script and check")


async def open_files(_: Patient) -> Verdict:
    """Look how many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES_LEAST:
        return ok(f"a process may have {'any number' if soft == resource.RLIM_INFINITY else soft} open")
    more = hard if hard != resource.RLIM_INFINITY and hard >= _OPEN_FILES_LEAST else 4 * _OPEN_FILES_LEAST
    return warn(f"a process may have only {soft} open", f"ulimit -n {more}")


async def inotify(_: Patient) -> Verdict:
    """Look whether one more process can be woken by changes of files."""
    if not sys.platform.startswith("linux"):
        return skipped("this system has none")
    number = await in_thread(_watch_something)
    instances, watches = (_limit(f"max_user_{name}") for name in ("instances", "watches"))
    if number:
        found = f"no process can watch files: {os.strerror(number)} ({instances} instances, {watches} watches a user)"
        return fail(found, "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288")
    found = f"{instances} instances and {watches} watches a user"
    if instances < _INSTANCES_LEAST or watches < _WATCHES_LEAST:
        return warn(
            f"only {found}", "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"
        )
    return ok(found)


async def clock(patient: Patient) -> Verdict:
    """Look what time it is here, and by which zone the court goes."""
    now = patient.clock()
    offset = now.astimezone().strftime("%z")
    words = f"{now.isoformat(sep=' ', timespec='seconds')}; here it is UTC{offset[:3]}:{offset[3:]}"
    if now < _NOT_BEFORE:
        return fail(f"{words}: this clock was never set", "sudo timedatectl set-ntp true")
    return ok(f"{words}, the court goes by {patient.realm.time_zone}")


async def load(patient: Patient) -> Verdict:
    """Look whether the Chamberlain would let anything begin, by processors and memory; the disk has its own look."""
    # The root is on no disk that could keep us waiting.
    sensor = MachineSensor(Path("/"))
    await asyncio.sleep(_LOAD_SECONDS)
    used = {metric: value for metric, value in (await sensor.read()).items() if metric != DISK}
    health, _ = next_health(HealthState(), sensor.name, used, patient.clock(), patient.realm.chamberlain.health)
    words = ", ".join(f"{metric}: {value:.0f}" for metric, value in used.items())
    if health.level.rank < HealthLevel.ORANGE.rank:
        return ok(words)
    fix = f"end what else runs here, or raise chamberlain.health.{threshold_settings(health.level)} in kingdom.yaml"
    return warn(f"{words}: nothing new begins while the machine is as busy as now", fix)


def _namespaces_fix() -> str:
    for name, (closed, command) in _NO_NAMESPACES.items():
        file = _SYSTEM / name
        if file.exists() and file.read_text().strip() == closed:
            return command
    return f"see what `{_TRY_BUBBLEWRAP}` says, and allow user namespaces"


def _limit(name: str) -> int:
    return int((_SYSTEM / "fs/inotify" / name).read_text())


def _watch_something() -> int:
    """Watch a directory for a moment; returns the number of the error, 0 if there was none."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        return ctypes.get_errno()
    try:
        watched = library.inotify_add_watch(descriptor, b"/", 0x100)
        return ctypes.get_errno() or errno.ENOSPC if watched < 0 else 0
    finally:
        os.close(descriptor)

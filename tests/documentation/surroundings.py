"""Prepare the environment of a page: an empty home, programs, a checkout, and servers that end with it."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import aiohttp
import psutil
from psycopg.conninfo import conninfo_to_dict

from kingdom.standins.github.application import build_github
from kingdom.standins.jira.application import EMAIL, TOKEN, build_jira
from kingdom.standins.server import CONTROL, RunningServer, start
from kingdom.standins.slack.application import build_slack
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
# Variables of the person who runs the tests, which a reader of a page does not have.
_NOT_THEIRS = ("ANTHROPIC_", "DATABASE_URL", "GEMINI_", "GIT_", "GITHUB_", "JIRA_", "KINGDOM_", "OPENAI_", "PG")
_NOT_THEIRS_EITHER = ("COLUMNS", "LINES", "PYTEST_", "PYTHON", "SLACK_", "UV", "VIRTUAL_ENV", "XDG_")
# A court starts no work on a busy machine, and a machine that runs tests is busy.
_QUIET_MACHINE = """\
try:
    import psutil
except ImportError:
    pass
else:
    psutil.cpu_percent = lambda *_, **__: 5.0
"""


@contextmanager
def opened_directory() -> Iterator[Path]:
    """Create a directory for one page; remove it afterwards, and end every process in it."""
    # The directory contains sockets, whose paths must be short.
    directory = Path(tempfile.mkdtemp(prefix="page-"))
    # If root runs a page, an embedded server runs under another account.
    directory.chmod(0o711)
    for name in ("home", "tmp", "notes", "here", "python"):
        (directory / name).mkdir()
    (directory / "python" / "sitecustomize.py").write_text(_QUIET_MACHINE)
    try:
        yield directory
    finally:
        _end_processes(directory)
        shutil.rmtree(directory, ignore_errors=True)


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of a person who has only git, Python and Kingdom installed."""
    theirs = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_THEIRS) and not name.startswith(_NOT_THEIRS_EITHER)
    }
    people = {
        f"GIT_{part}_{name}": value
        for part in ("AUTHOR", "COMMITTER")
        for name, value in (("NAME", "Anna"), ("EMAIL", "anna@example.com"))
    }
    return {
        **theirs,
        **people,
        "HOME": str(directory / "home"),
        "LANG": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}:{theirs['PATH']}",
        "PYTHONPATH": str(directory / "python"),
        "TERM": "dumb",
        "TMPDIR": str(directory / "tmp"),
    }


def copy_checkout(target: Path) -> None:
    """Copy all files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def uv_environment(directory: Path) -> dict[str, str]:
    """Return variables that let uv use its existing cache from the empty home; none if there is no uv."""
    try:
        asked = subprocess.run(["uv", "cache", "dir"], capture_output=True, text=True, check=True)
        itself = subprocess.run(
            ["uv", "run", "--no-project", "printenv", "UV"],
            cwd=directory,
            env={**environment(directory), "HOME": str(Path.home())},
            capture_output=True,
            text=True,
            check=True,
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return {}
    # The uv on PATH may be a shim that needs its original home.
    programs = directory / "programs"
    programs.mkdir()
    (programs / "uv").symlink_to(itself.stdout.strip())
    return {"UV_CACHE_DIR": asked.stdout.strip(), "PATH": f"{programs}:{environment(directory)['PATH']}"}


def as_url(conninfo: str) -> str:
    """Return a database address as people write it."""
    parts = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(conninfo).items()}
    password = f":{parts['password']}" if "password" in parts else ""
    person = f"{parts['user']}{password}@" if "user" in parts else ""
    port = f":{parts['port']}" if "port" in parts else ""
    return f"postgresql://{person}{parts.get('host', '')}{port}/{parts['dbname']}"


@contextmanager
def opened_standins(directory: Path) -> Iterator[dict[str, str]]:
    """Run stand-ins for GitHub, Jira and Slack until the block ends; yield the variables that name them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stand-ins", daemon=True)
    thread.start()
    try:
        running = asyncio.run_coroutine_threadsafe(_start_standins(directory), loop).result(PATIENCE_SECONDS)
        try:
            yield {
                "GITHUB_API_URL": running["github"].url,
                "GITHUB_TOKEN": "github-token",
                "JIRA_URL": running["jira"].url,
                "JIRA_EMAIL": EMAIL,
                "JIRA_TOKEN": TOKEN,
                "SLACK_API_URL": f"{running['slack'].url}/api/",
                "SLACK_BOT_TOKEN": "xoxb-standin",
                "SLACK_APP_TOKEN": "xapp-standin",
            }
        finally:
            for each in running.values():
                asyncio.run_coroutine_threadsafe(each.stop(), loop).result(PATIENCE_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_SECONDS)
        loop.close()


async def _start_standins(directory: Path) -> dict[str, RunningServer]:
    directory.mkdir()
    applications = {
        "github": build_github(directory / "github.json"),
        "jira": build_jira(directory / "jira.json"),
        "slack": build_slack(directory / "slack.json"),
    }
    running = {name: await start(application) for name, application in applications.items()}
    async with aiohttp.ClientSession() as session:

        async def post(name: str, what: str, body: dict[str, object]) -> dict[str, object]:
            async with session.post(f"{running[name].url}{CONTROL}/{what}", json=body) as answer:
                answer.raise_for_status()
                reported: dict[str, object] = await answer.json()
                return reported

        await post("github", "limits", {"poll_interval": 1})
        anna = await post("slack", "users", {"name": "anna"})
        await post("slack", "channels", {"name": "kingdom", "members": [anna["id"]]})
    return running


def _end_processes(directory: Path) -> None:
    home = str(directory / "home")
    left = [each for each in psutil.process_iter() if _belongs(each, home, directory)]
    for number in ("terminate", "kill"):
        for each in left:
            try:
                getattr(each, number)()
            except psutil.NoSuchProcess:
                continue
        left = psutil.wait_procs(left, timeout=PATIENCE_SECONDS)[1]


def _belongs(process: psutil.Process, home: str, directory: Path) -> bool:
    try:
        return process.environ().get("HOME") == home or Path(process.cwd()).is_relative_to(directory)
    except (psutil.Error, OSError):
        return False

"""Create repositories for tests, and the checkouts of a run."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from kingdom.soldiers.checkouts.repository import clone_name
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts


def run(*arguments: str, cwd: Path) -> str:
    """Run git without any configuration of this machine."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=cwd, env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


def make_source(path: Path, files: int = 1) -> Path:
    """Make a repository with one commit on main."""
    path.mkdir(parents=True)
    run("init", "--quiet", "-b", "main", cwd=path)
    for number in range(files):
        (path / f"file{number}.txt").write_text(f"line {number}\n")
    (path / ".gitignore").write_text("*.log\n")
    run("add", "--all", cwd=path)
    run("commit", "--quiet", "-m", "first", cwd=path)
    return path


def make_bare(path: Path) -> Path:
    """Make an empty repository that others push to."""
    path.mkdir(parents=True)
    run("init", "--quiet", "--bare", cwd=path)
    return path


def a_tree(host: Path, source: Path, name: str = "tree1", **changes: object) -> CheckoutSpec:
    """Describe a checkout of a repository below the directory of a host."""
    values: dict[str, object] = {
        "id": f"wf1-{name}",
        "git_id": source.name,
        "url": str(source),
        "checkpoint_remote": "",
        "base_branch": "main",
        "branch": f"kingdom/wf1/{name}",
        "path": host / "trees" / name,
        **changes,
    }
    make: Callable[..., CheckoutSpec] = CheckoutSpec
    return make(**values)


def files_of(path: Path) -> dict[str, str]:
    """Return the text of all files of a checkout."""
    found = (file for file in path.rglob("*") if file.is_file() and ".git" not in file.relative_to(path).parts)
    return {str(file.relative_to(path)): file.read_text() for file in found}


async def checkpointed(
    trees: RunCheckouts, wanted: Sequence[CheckoutSpec], checkpoint_id: str, message: str
) -> dict[str, str]:
    """Commit, and take a checkpoint of the commits."""
    await trees.commit(wanted, message)
    return await trees.checkpoint(wanted, checkpoint_id)


def processes_in(path: Path) -> list[str]:
    """Return the command lines of all processes that run in a directory or name it."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                place = str((process / "cwd").readlink())
            except OSError:
                continue
            if place.startswith(str(path)) or (str(path) in line and "pytest" not in line):
                found.append(line)
    return found


def bare(host: Path, tree: CheckoutSpec) -> Path:
    """Return the clone that a checkout belongs to."""
    return host / "repositories" / clone_name(tree.git_id, tree.url)

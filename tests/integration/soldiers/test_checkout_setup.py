import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.redaction import REDACTED, Redaction
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.soldiers.workplace.checkout_setup import (
    CheckoutSetup,
    CheckoutSetupFailed,
    copied_secrets,
    set_up_checkout,
)
from tests.integration.soldiers.processes import growing_limits
from tests.integration.soldiers.sources import a_tree, make_source, processes_in, run

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "KINGDOM_PORT_BASE": "20000"}
SCRIPT = ".kingdom/setup.sh"


async def checked_out(tmp_path: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> CheckoutSpec:
    """Return a checkout of a repository with these files and links; git ignores `.env` files and `cache`."""
    source = make_source(tmp_path / "app")
    (source / ".gitignore").write_text(".env*\ncache\nlocal.yaml\n")
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    for name, target in (links or {}).items():
        (source / name).symlink_to(target)
    run("add", "--all", "--force", cwd=source)
    run("commit", "--quiet", "-m", "second", cwd=source)
    tree = a_tree(tmp_path / "host", source)
    await RunCheckouts(tmp_path / "host" / "repositories").prepare([tree])
    return tree


def provided(tmp_path: Path, files: Mapping[str, str]) -> CheckoutSetup:
    """Return a setup with files for the repository `app`."""
    for name, text in files.items():
        path = tmp_path / "files" / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CheckoutSetup(files=tmp_path / "files")


async def prepared(tree: CheckoutSpec, checkout_setup: CheckoutSetup, **options: Any) -> None:
    """Prepare a checkout, with git's list of ignored files."""
    trees = RunCheckouts(tree.path.parents[1] / "repositories")
    await set_up_checkout(tree, checkout_setup, ignored=partial(trees.ignored, tree), **options)


async def test_a_setup_script_of_the_repository_runs_once_per_checkout(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {SCRIPT: "echo set up with $KINGDOM_PORT_BASE; echo again >> cache\n"})
    for _ in range(2):
        await prepared(tree, CheckoutSetup(), folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert (tree.path / "cache").read_text() == "again\n"
    assert (tmp_path / "notes" / f"{tree.id}.log").read_text() == "set up with 20000\n"


async def test_a_command_of_the_settings_runs_instead_of_the_script_of_the_repository(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {SCRIPT: "echo wrong > cache\n"})
    checkout_setup = CheckoutSetup(setup={"app": "echo right > cache", "other": "false"})
    await prepared(tree, checkout_setup, folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert (tree.path / "cache").read_text() == "right\n"


async def test_a_script_behind_a_link_runs_too(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {"tools/setup.sh": "echo linked > cache\n"}, {".kingdom": "tools"})
    await prepared(tree, CheckoutSetup(), folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert (tree.path / "cache").read_text() == "linked\n"


async def test_a_folder_named_kingdom_without_a_setup_script_runs_nothing(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {".kingdom/notes.md": "none\n"})
    await prepared(tree, CheckoutSetup(), folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert (tmp_path / "notes" / f"{tree.id}.log").read_text() == ""


async def test_without_a_script_nothing_runs(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {})
    await prepared(tree, CheckoutSetup(), folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert not (tmp_path / "notes" / f"{tree.id}.log").exists()


async def test_a_failed_script_is_reported_with_the_end_of_its_output_and_runs_again_the_next_time(
    tmp_path: Path,
) -> None:
    script = "for i in $(seq 2000); do echo noise; done; echo no such package >&2; test -f ready || exit 3\n"
    tree = await checked_out(tmp_path, {SCRIPT: script})
    with pytest.raises(CheckoutSetupFailed, match=r"(?s)exit code 3.*noise\nno such package$") as failed:
        await prepared(tree, CheckoutSetup(), folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert len(str(failed.value)) < 3000
    assert (tmp_path / "notes" / f"{tree.id}.log").read_text().count("noise") == 2000
    (tree.path / "ready").touch()
    await prepared(tree, CheckoutSetup(), folder=tmp_path / "notes", environment=ENVIRONMENT)


async def test_a_script_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {SCRIPT: "(sleep 300 &)\necho begun\nsleep 300\n"})
    for limit in growing_limits():
        with pytest.raises(
            CheckoutSetupFailed, match=f"longer than {limit.total_seconds():g} s and was killed"
        ) as failed:
            await prepared(tree, CheckoutSetup(limit=limit), folder=tmp_path / "notes", environment=ENVIRONMENT)
        assert processes_in(tree.path) == []
        if str(failed.value).endswith("begun"):
            break


async def test_the_output_of_a_script_is_kept_without_secrets(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {SCRIPT: "printf 'open-'; printf 'sesame\\n'; exit 1\n"})
    with pytest.raises(CheckoutSetupFailed) as failed:
        await prepared(
            tree,
            CheckoutSetup(),
            folder=tmp_path / "notes",
            environment=ENVIRONMENT,
            redaction=Redaction(["open-sesame"]),
        )
    assert str(failed.value).endswith(REDACTED)
    assert (tmp_path / "notes" / f"{tree.id}.log").read_text() == f"{REDACTED}\n"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_a_setup_script_writes_nothing_outside_of_its_sandbox(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    tree = await checked_out(tmp_path, {SCRIPT: f"echo in > cache; echo out > {outside}; true\n"})
    sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(tree.path,))
    await prepared(tree, CheckoutSetup(), folder=tmp_path / "notes", environment=ENVIRONMENT, sandbox=sandbox)
    assert (tree.path / "cache").read_text() == "in\n"
    assert not outside.exists()


async def test_ignored_files_that_worktreeinclude_lists_are_copied(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {".worktreeinclude": ".env*\n!.env.example\nconfig/local.yaml\n"})
    checkout_setup = provided(
        tmp_path, {".env": "A=1", "sub/.env.test": "B=2", ".env.example": "C", "config/local.yaml": "x"}
    )
    (tmp_path / "files" / "app" / ".env").chmod(0o600)
    await prepared(tree, checkout_setup, folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert (tree.path / ".env").read_text() == "A=1"
    assert (tree.path / ".env").stat().st_mode & 0o777 == 0o600
    assert (tree.path / "sub" / ".env.test").read_text() == "B=2"
    assert (tree.path / "config" / "local.yaml").read_text() == "x"
    assert not (tree.path / ".env.example").exists()
    assert run("status", "--porcelain", cwd=tree.path) == ""


async def test_a_file_that_would_be_committed_is_not_copied(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {".worktreeinclude": "*\n"})
    checkout_setup = provided(tmp_path, {".env": "A=1", "notes.txt": "mine", "file0.txt": "another"})
    await prepared(tree, checkout_setup, folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert (tree.path / ".env").exists()
    assert not (tree.path / "notes.txt").exists()
    assert (tree.path / "file0.txt").read_text() == "line 0\n"


async def test_no_link_in_the_folder_or_the_checkout_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".env").write_text("SECRET=of-somebody-else")
    tree = await checked_out(
        tmp_path, {".worktreeinclude": ".env*\n"}, {"sub": str(outside), ".env.there": "/etc/hosts"}
    )
    checkout_setup = provided(tmp_path, {"sub/.env.local": "A=1", ".env.there": "B=2", ".env": "C=3"})
    (tmp_path / "files" / "app" / ".env.link").symlink_to(outside / ".env")
    (tmp_path / "files" / "app" / "folder").symlink_to(outside)
    await prepared(tree, checkout_setup, folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert [path.name for path in outside.iterdir()] == [".env"]
    assert (tree.path / ".env.there").is_symlink()
    assert not (tree.path / ".env.link").exists()
    assert not (tree.path / "folder").exists()
    assert (tree.path / ".env").read_text() == "C=3"


async def test_values_of_secret_variables_in_copied_env_files_are_secrets(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {".worktreeinclude": ".env\nlocal.yaml\n"})
    text = "# for tests\nexport API_KEY='of-the-house'\nDEBUG=1\nDB_PASSWORD=hunter2hunter2\n"
    checkout_setup = provided(tmp_path, {".env": text, "local.yaml": "TOKEN=not-looked-at"})
    assert copied_secrets(tree, checkout_setup, folder=tmp_path / "notes") == set()
    await prepared(tree, checkout_setup, folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert copied_secrets(tree, checkout_setup, folder=tmp_path / "notes") == {"of-the-house", "hunter2hunter2"}


async def test_an_env_file_whose_name_cannot_be_recorded_is_not_copied(tmp_path: Path) -> None:
    tree = await checked_out(tmp_path, {".worktreeinclude": ".env*\ncache\n"})
    odd = (".env\n.local", "line\nbreak/.env", ".env\udcff")
    files = dict.fromkeys(odd, "API_KEY=of-the-house")
    checkout_setup = provided(tmp_path, {**files, ".env": "DB_PASSWORD=hunter2hunter2", "cache/a\nb": "x"})
    await prepared(tree, checkout_setup, folder=tmp_path / "notes", environment=ENVIRONMENT)
    assert not [name for name in odd if (tree.path / name).exists()]
    assert (tree.path / "cache" / "a\nb").exists()
    assert copied_secrets(tree, checkout_setup, folder=tmp_path / "notes") == {"hunter2hunter2"}


async def test_secrets_of_copied_env_files_are_redacted_in_the_setup_log_even_if_it_fails(tmp_path: Path) -> None:
    script = "cat .env; test -f cache || { touch cache; exit 1; }\n"
    tree = await checked_out(tmp_path, {".worktreeinclude": ".env*\n!.env.example\n", SCRIPT: script})
    text = "DB_PASSWORD=hunter2hunter2\n"
    checkout_setup = provided(tmp_path, {".env": text, ".env.example": "API_KEY=put-yours-here"})
    notes = tmp_path / "notes"
    with pytest.raises(CheckoutSetupFailed) as failed:
        await prepared(tree, checkout_setup, folder=notes, environment=ENVIRONMENT)
    assert str(failed.value).endswith(f"DB_PASSWORD={REDACTED}")
    await prepared(tree, checkout_setup, folder=notes, environment=ENVIRONMENT)
    assert (notes / f"{tree.id}.log").read_text() == f"DB_PASSWORD={REDACTED}\n" * 2
    assert copied_secrets(tree, checkout_setup, folder=notes) == {"hunter2hunter2"}

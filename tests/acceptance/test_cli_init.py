import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from bench.postgres import PrivateCluster
from kingdom.court.package_files import load_packages
from kingdom.realm import read_realm
from tests import warm
from tests.acceptance.terminal import CTRL_C, Done, Terminal
from tests.integration.embedded import open_room, until_nothing_is_left
from tests.integration.standins.github import TOKEN, standing_in
from tests.patience import PATIENCE_SECONDS

# These tests must pass on a busy machine, too.
CALM = """
chamberlain:
  every_seconds: 1
  health: {yellow: 1000, orange: 1000, red: 1000, disk_yellow: 1000, disk_orange: 1000}
"""


def plain(**environment: str) -> dict[str, str]:
    """Return an environment without a configured store, in which `kingdom` is on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KINGDOM_", "PG"))}
    for name in ("DATABASE_URL", "GITHUB_TOKEN"):
        kept.pop(name, None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "TZ": "Europe/Berlin", **environment}


def kingdom(directory: Path, *words: str, **environment: str) -> Done:
    done = Done(*warm.run(words, directory, plain(**environment)))
    assert "Traceback" not in done.err, done.err
    return done


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def next_steps(done: Done) -> list[str]:
    """Return the commands that a person should type."""
    _, found, steps = done.out.partition("Next:\n")
    assert found, done.out
    return [line.strip() for line in steps.splitlines() if line.strip()]


async def follow(directory: Path, steps: list[str], environment: Mapping[str, str], text: str = "") -> str:
    """Type every step into a shell unchanged. A step that needs its own terminal runs in parallel."""
    lines = ["set -e", "up=", "trap '[ -z \"$up\" ] || { kill -TERM $up; wait $up; }' EXIT"]
    for step in steps:
        if step.startswith("kingdom up"):
            lines += [f"{step.partition('#')[0]} 2> up.log & up=$!"]
        elif step.startswith("kingdom status"):
            # A role that has just started needs a moment until its first heartbeat.
            lines += [f"until {step.partition('#')[0]}; do sleep 0.2; done"]
        else:
            lines += [step]
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", "\n".join(lines)),
        cwd=directory,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            output, _ = await process.communicate(text.encode())
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode == 0, output.decode()
    return output.decode()


def test_a_new_realm_of_files_passes_config_check(tmp_path: Path) -> None:
    done = kingdom(tmp_path, "init", "home", "--yes")
    assert (done.code, done.err) == (0, "")
    home = tmp_path / "home"
    assert sorted(path.name for path in home.iterdir()) == [".gitignore", "kingdom.yaml", "realm"]
    checked = kingdom(home, "config", "check")
    assert (checked.code, yaml.safe_load(checked.out)["time_zone"]) == (0, "Europe/Berlin")
    assert [package.name for package in load_packages(home / "realm" / "generals").packages] == ["gen-hello"]
    assert kingdom(home, "general", "validate").code == 0
    text = (home / "kingdom.yaml").read_text()
    assert text.count("\n# ") > 10


def test_git_ignores_the_store_and_the_secrets_of_a_realm_but_not_its_generals(tmp_path: Path) -> None:
    assert kingdom(tmp_path, "init", "--yes").code == 0
    (tmp_path / "realm" / "bus").mkdir()
    (tmp_path / "realm" / "bus" / "lock").touch()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").touch()
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    listing = ["git", "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(listing, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {".gitignore", "kingdom.yaml", "realm/generals/gen-hello/general.yaml"} <= set(seen)
    assert not [name for name in seen if "lock" in name or "token" in name]


def test_init_changes_no_existing_file(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    (tmp_path / "kingdom.yaml").write_text("# mine\ndatabase_url: file:elsewhere\n")
    done = kingdom(tmp_path, "init", "--yes")
    assert done.code == 0
    assert (tmp_path / ".gitignore").read_text() == "*.pyc\n"
    assert (tmp_path / "kingdom.yaml").read_text() == "# mine\ndatabase_url: file:elsewhere\n"
    assert "kept  kingdom.yaml" in done.out
    assert "Add these lines to .gitignore" in done.out
    assert "/elsewhere/*" in done.out
    assert (tmp_path / "elsewhere" / "generals" / "gen-hello" / "general.yaml").exists()
    before = snapshot(tmp_path)
    again = kingdom(tmp_path, "init")
    assert (again.code, "Everything already exists, and nothing was changed." in again.out) == (0, True)
    assert snapshot(tmp_path) == before


def test_unreadable_settings_are_left_alone_and_reported(tmp_path: Path) -> None:
    (tmp_path / "kingdom.yaml").write_text("sentinel: [\n")
    before = snapshot(tmp_path)
    done = kingdom(tmp_path, "init", "--yes")
    assert (done.code, "was not changed, but it cannot be read" in done.err) == (2, True)
    assert snapshot(tmp_path) == before


def test_a_file_in_the_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    done = kingdom(tmp_path, "init", "home", "--yes")
    assert (done.code, "home is a file" in done.err) == (2, True)


def test_an_interrupted_init_is_completed_by_the_next_one(tmp_path: Path) -> None:
    assert kingdom(tmp_path, "init", "--yes").code == 0
    (tmp_path / "kingdom.yaml").unlink()
    done = kingdom(tmp_path, "init", "--json").document
    assert (done["made"], sorted(map(os.path.basename, done["kept"]))) == (
        ["kingdom.yaml"],
        [".gitignore", "gen-hello"],
    )


def test_a_database_url_from_the_environment_is_used_and_its_password_is_not_stored(tmp_path: Path) -> None:
    url = "postgresql://kingdom:very-secret@127.0.0.1:9/kingdom"
    done = kingdom(tmp_path, "init", "--json", DATABASE_URL=url).document
    assert list(done) == ["directory", "made", "kept", "store", "general", "next"]
    assert (done["store"], done["general"]) == ("env:DATABASE_URL", "gen-hello")
    assert done["next"][0] == "kingdom bus migrate"
    assert (tmp_path / "generals" / "gen-hello").is_dir()
    assert not [path for path, content in snapshot(tmp_path).items() if b"very-secret" in content]
    assert kingdom(tmp_path, "config", "check", DATABASE_URL=url).code == 0
    refused = kingdom(tmp_path / "generals", "init", "--yes", "--database-url", url)
    assert (refused.code, "a password must not be in the file" in refused.err) == (2, True)


def test_a_store_can_be_chosen_by_its_kind(tmp_path: Path) -> None:
    with open_room() as room:
        done = kingdom(room, "init", "--store", "embedded", "--json").document
        assert (done["store"], done["next"][0]) == ("embedded:realm/postgres", "kingdom doctor")
        assert "\n/realm/*\n" in (room / ".gitignore").read_text()
        assert kingdom(room, "init", "--json").document["store"] == "embedded:realm/postgres"
        assert not (room / "realm").exists()
    (tmp_path / "letter").touch()
    refused = kingdom(tmp_path, "init", "home", "--yes", "--database-url", "embedded:..")
    assert (refused.code, "is not empty" in refused.err, (tmp_path / "home").exists()) == (2, True, False)
    refused = kingdom(tmp_path, "init", "other", "--store", "postgres")
    assert (refused.code, "in DATABASE_URL: export it first" in refused.err) == (2, True)
    refused = kingdom(tmp_path, "init", "other", "--store", "files", "--database-url", "file:realm")
    assert (refused.code, "leave one of them out" in refused.err) == (2, True)


def test_a_store_that_the_environment_would_override_is_reported(tmp_path: Path) -> None:
    other = "postgresql://127.0.0.1:9/shop"
    done = kingdom(tmp_path, "init", "--yes", "--store", "files", KINGDOM_DATABASE_URL=other)
    assert next_steps(done)[0].startswith("unset KINGDOM_DATABASE_URL")


def test_the_store_of_a_realm_takes_precedence_over_the_database_of_the_application(tmp_path: Path) -> None:
    shop = {"DATABASE_URL": "postgresql://127.0.0.1:9/shop"}
    done = kingdom(tmp_path, "init", "--yes", "--store", "files", **shop)
    assert not any("unset" in step for step in next_steps(done))
    assert kingdom(tmp_path, "event", "send", "--type", "demo.hello", **shop).code == 0
    assert (tmp_path / "realm" / "state").is_dir()
    (tmp_path / "kingdom.yaml").unlink()
    assert kingdom(tmp_path, "status", **shop).code == 3


@pytest.mark.parametrize(
    "words", [("--github", "a b"), ("--github", "bot", "--repo", "shop"), ("--repo", "acme/shop"), ("--github", "bot")]
)
def test_invalid_options_for_github_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = kingdom(tmp_path, "init", "home", "--yes", *words)
    assert (done.code, (tmp_path / "home").exists()) == (2, False)


def test_three_questions_are_asked_on_a_terminal_and_all_have_defaults(tmp_path: Path) -> None:
    home = tmp_path / "home"
    terminal = Terminal(tmp_path, "")
    screen = terminal.converse("init", str(home), until="stored?", answer="\n\n")
    assert (screen.code, screen.out.count("?")) == (0, 2)
    assert read_realm(home / "kingdom.yaml").sentinel.github is None

    other = tmp_path / "other"
    screen = terminal.converse("init", str(other), until="stored?", answer="file:store\nour-bot\nacme/shop\n")
    assert (screen.code, screen.out.count("?")) == (0, 3)
    output = yaml.safe_load((other / "kingdom.yaml").read_text())
    assert (output["database_url"], output["sentinel"]["github"]["logins"]) == ("file:store", ["our-bot"])
    assert output["sentinel"]["github"]["repos"] == ["acme/shop"]
    assert (other / "store" / "generals" / "gen-pr").is_dir()

    asked_nothing = terminal.converse("init", str(tmp_path / "third"), "--yes", until="Next", answer="")
    assert (asked_nothing.code, "?" in asked_nothing.out) == (0, False)


def test_ctrl_c_at_a_question_of_init_ends_it_and_creates_nothing(tmp_path: Path) -> None:
    words = ("init", str(tmp_path / "home"))
    screen = Terminal(tmp_path, "").converse(*words, until="[file:realm]: ", answer=CTRL_C)
    assert (screen.code, "nothing was done" in screen.out, (tmp_path / "home").exists()) == (1, True, False)


def test_a_database_of_another_application_is_reported_or_refused(tmp_path: Path) -> None:
    result = kingdom(tmp_path, "init", "home", "--yes", DATABASE_URL="postgresql://db/shop")
    assert (result.code, "DATABASE_URL is set" in result.err, "--store files" in result.err) == (0, True, True)
    refused = kingdom(tmp_path, "init", "other", "--yes", DATABASE_URL="mysql://db/shop")
    assert (refused.code, "is not a PostgreSQL database" in refused.err) == (2, True)


@pytest.mark.installed
async def test_the_next_steps_of_a_realm_of_files_work_as_they_are_printed(tmp_path: Path) -> None:
    done = await asyncio.to_thread(kingdom, tmp_path, "init", "my realm", "--yes")
    settings = tmp_path / "my realm" / "kingdom.yaml"
    settings.write_text(settings.read_text() + CALM)
    updates = await follow(tmp_path, next_steps(done), plain())
    assert "ended: completed" in updates
    assert "Everything works." in updates or "could be better" in updates
    assert "Nothing needs a person." in updates


@pytest.mark.installed
async def test_the_next_steps_of_a_realm_in_a_database_work_as_they_are_printed(tmp_path: Path) -> None:
    with PrivateCluster(fsync=True) as cluster:
        environment = {"DATABASE_URL": cluster.create_database("init")}
        done = await asyncio.to_thread(kingdom, tmp_path, "init", "home", "--yes", **environment)
        settings = tmp_path / "home" / "kingdom.yaml"
        settings.write_text(settings.read_text() + CALM)
        updates = await follow(tmp_path, next_steps(done), plain(**environment))
        cluster.drop_database("init")
    assert "Applied 0001_create_bus" in updates
    assert "ended: completed" in updates


@pytest.mark.installed
async def test_the_next_steps_of_a_realm_with_a_database_of_its_own_work_as_they_are_printed() -> None:
    with open_room() as room:
        done = await asyncio.to_thread(kingdom, room, "init", "home", "--yes", "--store", "embedded")
        assert not any("migrate" in step for step in next_steps(done))
        settings = room / "home" / "kingdom.yaml"
        settings.write_text(settings.read_text() + CALM)
        updates = await follow(room, next_steps(done), plain())
        await until_nothing_is_left(room / "home" / "realm" / "postgres", soon=True)
    assert "ended: completed" in updates
    assert "Nothing needs a person." in updates


@pytest.mark.installed
async def test_the_next_steps_of_a_realm_that_watches_github_work_as_they_are_printed(tmp_path: Path) -> None:
    source = tmp_path / "github.com" / "acme" / "shop.git"
    home = tmp_path / "shop"
    begin = [
        f"git init --quiet --bare --initial-branch main {shlex.quote(str(source))}",
        f"git clone --quiet {shlex.quote(str(source))} shop 2> /dev/null",
        "git -C shop -c user.name=me -c user.email=me@localhost commit --quiet --allow-empty -m Begin",
        "git -C shop push --quiet origin HEAD:main",
    ]
    await follow(tmp_path, begin, plain())
    async with standing_in(tmp_path / "github.json") as site:
        words = ("init", "--yes", "--github", "kingdom-bot", "--repo", "acme/shop", "--github-api", site.url)
        done = await asyncio.to_thread(kingdom, home, *words)
        steps = next_steps(done)
        assert f"kingdom git create acme.shop {source} --repo acme/shop" in steps
        settings = home / "kingdom.yaml"
        settings.write_text(settings.read_text() + CALM)
        updates = await follow(home, steps, plain(), text=f"{TOKEN}\n")
    assert "kingdom-bot, scopes notifications, repo" in updates
    assert "Nothing needs a person." in updates

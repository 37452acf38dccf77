"""Agents that change the configuration of a repository that they share with the host."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kingdom.soldiers.checkouts.checkout import git_directory_of
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, checkpointed, files_of, make_source, run


def change_the_configuration(_: Path, tree: CheckoutSpec, evil: str) -> None:
    run("config", "filter.evil.clean", evil, cwd=tree.path)
    run("config", "filter.evil.smudge", evil, cwd=tree.path)


def change_the_configuration_of_one_checkout(_: Path, tree: CheckoutSpec, evil: str) -> None:
    run("config", "extensions.worktreeConfig", "true", cwd=tree.path)
    run("config", "--worktree", "filter.evil.clean", evil, cwd=tree.path)


def replace_the_configuration_by_a_link(host: Path, tree: CheckoutSpec, evil: str) -> None:
    change_the_configuration(host, tree, evil)
    (bare(host, tree) / "config").rename(host / "config")
    (bare(host, tree) / "config").symlink_to(host / "config")


def point_to_another_common_folder(host: Path, tree: CheckoutSpec, evil: str) -> None:
    elsewhere = host / "elsewhere"
    run("clone", "--quiet", "--bare", str(bare(host, tree)), str(elsewhere), cwd=host)
    run("config", "filter.evil.clean", evil, cwd=elsewhere)
    (git_directory_of(tree.path) / "commondir").write_text(f"{elsewhere}\n")


@pytest.mark.parametrize(
    "change",
    [
        change_the_configuration,
        change_the_configuration_of_one_checkout,
        replace_the_configuration_by_a_link,
        point_to_another_common_folder,
    ],
)
async def test_a_program_that_an_agent_configures_is_not_run(
    trees: RunCheckouts, host: Path, source: Path, change: Callable[[Path, CheckoutSpec, str], None]
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    start = await trees.base_commit(tree)
    (tree.path / ".gitattributes").write_text("* filter=evil\n")
    change(host, tree, f"touch {host}/was-run; cat")
    (tree.path / "file0.txt").write_text("changed\n")
    assert "+changed" in await trees.diff(tree, start)
    commits = await checkpointed(trees, [tree], "c1", "work")
    await trees.roll_back([tree], {}, [tree.id], "r1")
    await trees.roll_back([tree], commits, [], "r2")
    assert (tree.path / "file0.txt").read_text() == "changed\n"
    await trees.release(tree, "end")
    assert not (host / "was-run").exists()


async def test_attributes_of_one_run_do_not_apply_to_another(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree, other = a_tree(host, source), a_tree(host, source, "tree2")
    await trees.prepare([tree, other])
    info = bare(host, tree) / "info"
    info.mkdir()
    (info / "attributes").write_text("* ident\n")
    (other.path / "new.txt").write_text("$Id: mine $\n")
    await trees.commit([other], "work")
    assert run("show", "HEAD:new.txt", cwd=other.path) == "$Id: mine $"
    assert not (info / "attributes").exists()


async def test_a_link_in_the_place_of_the_attributes_is_removed_but_not_its_target(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (host / "mine").mkdir()
    (host / "mine" / "attributes").write_text("* ident\n")
    (bare(host, tree) / "info").symlink_to(host / "mine")
    await trees.commit([tree], "work")
    assert not (bare(host, tree) / "info").is_symlink()
    assert (host / "mine" / "attributes").exists()


async def test_an_agent_cannot_redirect_a_fetch(trees: RunCheckouts, host: Path, source: Path, tmp_path: Path) -> None:
    await trees.prepare([a_tree(host, source)])
    make_source(tmp_path / "evil", files=1)
    run("config", f"url.{tmp_path}/evil.insteadOf", str(source), cwd=host / "trees" / "tree1")
    second = a_tree(host, source, "tree2")
    await trees.prepare([second])
    assert files_of(second.path) == files_of(source)


async def test_only_a_changed_configuration_is_restored(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    config = bare(host, tree) / "config"
    text, file = config.read_bytes(), config.stat().st_ino
    await trees.commit([tree], "nothing")
    assert config.stat().st_ino == file
    run("config", "user.name", "Eve", cwd=tree.path)
    await trees.commit([tree], "nothing")
    assert config.read_bytes() == text


async def test_the_configuration_of_the_user_is_trusted(host: Path, source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[url "{source}"]\n\tinsteadOf = https://git.example.org/app\n')
    tree = a_tree(host, source, url="https://git.example.org/app")
    await RunCheckouts(host / "repositories", home=home).prepare([tree])
    assert files_of(tree.path) == files_of(source)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a # b; c", "ä b"])
async def test_an_address_with_special_characters_is_stored_unchanged(
    trees: RunCheckouts, host: Path, tmp_path: Path, name: str
) -> None:
    source = make_source(tmp_path / name)
    tree = a_tree(host, source, git_id="odd")
    await trees.prepare([tree])
    assert run("config", "remote.origin.url", cwd=tree.path) == str(source)

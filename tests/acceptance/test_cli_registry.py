"""Repositories, MCP servers and templates from the command line, on a store of files."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.acceptance.terminal import ROOT, Terminal

SERVER = ROOT / "tests" / "integration" / "soldiers" / "mcp_server.py"
SERVE = f"{sys.executable} {SERVER}"
TEMPLATE = """\
name: Fix the bug
gitRefs: [app]
works:
  - name: repair
    mcpServerRefs: [shelf]
    tasks:
      - Find the cause.
      - |
        Repair it.
        Say how.
"""


@pytest.fixture
def laptop(tmp_path: Path, realm: Path) -> Terminal:
    return Terminal(tmp_path, f"file:{realm}")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose default branch is `trunk`, with another branch `dev`."""
    place = tmp_path / "app.git"
    author = ["-c", "user.name=anna", "-c", "user.email=anna@example.org"]
    for words in (
        ["init", "--quiet", "--initial-branch=trunk", str(place)],
        ["-C", str(place), *author, "commit", "--quiet", "--allow-empty", "-m", "first"],
        ["-C", str(place), "branch", "dev"],
    ):
        subprocess.run(["git", *words], check=True)
    return place


def test_a_repository_is_checked_and_registered_with_its_default_branch(laptop: Terminal, repository: Path) -> None:
    made = laptop.run_json("git", "create", "app", str(repository))
    assert made == {
        "id": "app",
        "name": "app",
        "url": str(repository),
        "defaultBranch": "trunk",
        "checkpointRemote": "",
        "repo": "",
        "deleted": False,
        "deleting": False,
    }
    assert laptop.run_json("git", "list") == [made]
    assert laptop.run_json("git", "show", "app") == {"git": made, "users": {"workflows": [], "templates": []}}
    shown = laptop.run("git", "show", "app")
    assert "trunk" in shown.out
    again = laptop.run("git", "create", "app", str(repository), "--branch", "dev")
    assert (again.code, "git app is ACTIVE" in again.err) == (1, True)


def test_a_repository_on_github_can_be_registered_as_one_git_only(laptop: Terminal, repository: Path) -> None:
    made = laptop.run("git", "create", "app", str(repository), "--repo", "acme/web-app")
    assert "Events of acme/web-app use it." in made.out
    listed = laptop.run("git", "list").out
    assert "acme/web-app" in listed
    again = laptop.run("git", "create", "other", "git@github.com:Acme/Web-App.git", "--no-check")
    assert again.code == 1
    assert (
        "git app is ACTIVE: events of Acme/Web-App use it, so other cannot have the repository name Acme/Web-App too"
        in again.err
    )
    twin = laptop.run_json("git", "create", "acme-web-app", "https://github.com/acme-web/app.git", "--no-check")
    assert twin["repo"] == "acme-web/app"
    assert laptop.run_json("git", "create", "other", str(repository), "--repo", "")["repo"] == ""
    unfit = laptop.run("git", "create", "third", str(repository), "--repo", "web-app")
    assert (unfit.code, "write it as acme/shop" in unfit.err) == (2, True)


def test_a_repository_is_checked_with_the_git_settings_of_a_host(
    laptop: Terminal, repository: Path, tmp_path: Path, realm: Path
) -> None:
    private_host = "https://private.example.invalid/"
    mine = f'[url "{repository.parent}/"]\n\tinsteadOf = {private_host}\n'
    (tmp_path / ".gitconfig").write_text(mine)
    create = ("git", "create", "app", f"{private_host}app.git")
    refused = laptop.run(*create, environment={"HOME": str(tmp_path)})
    assert refused.code == 1
    assert f"a host reads credentials from {realm}/.gitconfig" in refused.err
    realm.mkdir(exist_ok=True)
    (realm / ".gitconfig").write_text(mine)
    assert laptop.run(*create).code == 0


def test_a_repository_that_cannot_be_used_is_refused_unless_the_check_is_skipped(
    laptop: Terminal, repository: Path
) -> None:
    nowhere = laptop.run("git", "create", "app", f"{repository}-not")
    assert (nowhere.code, "cannot be reached: check the address" in nowhere.err) == (1, True)
    branch = laptop.run("git", "create", "app", str(repository), "--branch", "ghost")
    assert branch.code == 1
    assert "has no branch 'ghost': name one with --branch (it has: dev, trunk)" in branch.err
    remote = laptop.run("git", "create", "app", str(repository), "--checkpoint-remote", f"{repository}-not")
    assert (remote.code, "cannot be reached" in remote.err) == (1, True)
    unfit = laptop.run("git", "create", "My App", str(repository))
    assert (unfit.code, "cannot be the id of a git" in unfit.err) == (2, True)
    unseen = laptop.run_json("git", "create", "app", "https://anna:secret@example.invalid/app.git", "--no-check")
    assert (unseen["defaultBranch"], unseen["url"]) == ("main", "https://example.invalid/app.git")
    assert "secret" not in laptop.run("git", "show", "app").out + laptop.run("git", "list", "--json").out


def test_a_deleted_repository_can_be_created_again(laptop: Terminal, repository: Path) -> None:
    laptop.run_json("git", "create", "app", str(repository))
    assert laptop.run_json("git", "delete", "app")["deleted"] is True
    assert laptop.run_json("git", "list") == []
    assert "There are no repositories" in laptop.run("git", "list").out
    assert laptop.run("git", "delete", "app").code == 1
    assert laptop.run_json("git", "create", "app", str(repository), "--branch", "dev")["defaultBranch"] == "dev"


def test_an_mcp_server_is_tested_and_its_secrets_stay_hidden(laptop: Terminal) -> None:
    made = laptop.run_json("mcp", "create", "shelf", "--command", f"{SERVE} stdio", "--env", "TOKEN=secret")
    assert made["tools"] == ["lend", "give_back"]
    assert (made["server"]["transport"], made["server"]["env"]) == ("STDIO", ["TOKEN"])
    assert made["server"]["command"] == [*SERVE.split(), "stdio"]
    shown = laptop.converse("mcp", "show", "shelf", "--check", until="Asking", answer="")
    assert "Asking shelf for its tools, for up to 30 s" in shown.out
    assert "lend, give_back" in shown.out
    assert "TOKEN" in shown.out
    assert "secret" not in shown.out
    assert laptop.run_json("mcp", "show", "shelf")["tools"] is None
    assert [server["id"] for server in laptop.run_json("mcp", "list")] == ["shelf"]
    assert laptop.run_json("mcp", "delete", "shelf")["deleted"] is True
    assert laptop.run_json("mcp", "list") == []


def test_an_mcp_server_that_does_not_work_is_refused_unless_the_check_is_skipped(laptop: Terminal) -> None:
    crash = laptop.run("mcp", "create", "shelf", "--command", f"{SERVE} crash", "--env", "SHELF=of glass")
    assert crash.code == 1
    assert "ended with exit code 1 before it answered; it wrote last: the shelf of glass has fallen down" in crash.err
    missing = laptop.run("mcp", "create", "shelf", "--command", "no-such-program")
    assert (missing.code, "there is no program 'no-such-program' on PATH" in missing.err) == (2, True)
    for wrong in ([], ["--command", "a", "--url", "b"], ["--command", "a 'b"], ["--url", "x", "--env", "y"]):
        assert laptop.run("mcp", "create", "shelf", *wrong).code == 2
    contrary = laptop.run("mcp", "create", "shelf", "--url", "http://x", "--transport", "stdio", "--no-check")
    assert (contrary.code, "uses STDIO and needs a command" in contrary.err) == (2, True)
    made = laptop.run_json("mcp", "create", "shelf", "--url", "http://example.invalid/mcp", "--no-check")
    assert (made["server"]["transport"], made["tools"]) == ("STREAMABLE_HTTP", None)
    older = laptop.run_json(
        "mcp", "create", "old", "--url", "http://example.invalid/sse", "--transport", "sse", "--no-check"
    )
    assert older["server"]["transport"] == "SSE"


def test_a_template_is_created_edited_and_deleted(laptop: Terminal, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "fix.yaml"
    file.write_text(TEMPLATE)
    refused = laptop.run("template", "create", str(file))
    assert (refused.code, "refers to git 'app', which is not registered" in refused.err) == (1, True)
    laptop.run_json("git", "create", "app", str(repository))
    laptop.run_json("mcp", "create", "shelf", "--url", "http://example.invalid/mcp", "--no-check")
    made = laptop.run_json("template", "create", str(file))
    assert (made["id"], made["gitRefs"]) == ("fix-the-bug", [{"gitId": "app", "baseBranch": "trunk"}])
    assert laptop.run_json("git", "show", "app")["users"]["templates"] == ["fix-the-bug"]
    assert laptop.run_json("template", "list") == [made]
    assert "repair" in laptop.run("template", "list").out

    written = laptop.run("template", "show", "fix-the-bug", "--yaml").out
    assert yaml.safe_load(written)["works"][0]["tasks"][1]["query"] == "Repair it.\nSay how.\n"
    assert laptop.run_json("template", "update", "fix-the-bug", "-", text=written) == made
    edited = laptop.run_json("template", "update", "fix-the-bug", "-", text=written.replace("trunk", "dev"))
    assert edited["gitRefs"] == [{"gitId": "app", "baseBranch": "dev"}]
    assert laptop.run_json("template", "show", "fix-the-bug") == edited
    other = laptop.run("template", "update", "fix-the-bug", "-", text=written.replace("id: fix-the-bug", "id: other"))
    assert (other.code, "- defines template 'other', not 'fix-the-bug'" in other.err) == (2, True)

    assert laptop.run_json("template", "delete", "fix-the-bug")["deleted"] is True
    assert laptop.run_json("template", "list") == []
    ghost = laptop.run("template", "from-workflow", "wf-ghost", "Again")
    assert (ghost.code, "there is no workflow 'wf-ghost'" in ghost.err) == (1, True)


def test_a_file_is_checked_without_a_store(laptop: Terminal, realm: Path, tmp_path: Path) -> None:
    good, bad, binary = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "binary.yaml"
    good.write_text(TEMPLATE)
    bad.write_text(TEMPLATE.replace("tasks:", "task:"))
    binary.write_bytes(b"\xff\xfe\x00")
    assert "id fix-the-bug, 1 work(s) and 2 task(s)" in laptop.run("template", "validate", str(good)).out
    refused = laptop.run("template", "validate", str(bad))
    assert (refused.code, f"{bad}:6: works[0].task: unknown field" in refused.err) == (2, True)
    assert "is not UTF-8" in laptop.run("template", "validate", str(binary)).err
    assert laptop.run("template", "validate", str(tmp_path / "none.yaml")).code == 2
    assert laptop.run_json("template", "schema")["$ref"] == "#/$defs/TemplateFile"
    assert not realm.exists()

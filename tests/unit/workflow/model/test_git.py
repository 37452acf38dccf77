"""The repository of a Git, and names that are unique for each repository."""

import itertools
import re

import pytest

from kingdom.workflow.model.resources.git import Git, repo_of, unique_name
from kingdom.workflow.registry import ID_PATTERN


@pytest.mark.parametrize(
    "address",
    [
        "https://github.com/acme/web-app",
        "https://github.com/acme/web-app.git",
        "https://x:token@GitHub.com/acme/web-app.git/",
        "http://github.com/acme/web-app",
        "ssh://git@github.com/acme/web-app.git",
        "ssh://git@ssh.github.com:443/acme/web-app.git",
        "git://github.com/acme/web-app",
        "git@github.com:acme/web-app.git",
        "github.com:/acme/web-app",
    ],
)
def test_an_address_on_the_forge_names_its_repository(address: str) -> None:
    assert repo_of(address, "github.com") == "acme/web-app"


@pytest.mark.parametrize(
    "address",
    [
        "https://gitlab.com/acme/web-app.git",
        "https://github.com.evil.example/acme/web-app",
        "https://github.com@evil.example/acme/web-app",
        "https://me@github.com@evil.example/acme/web-app",
        "https://github.com:8443/acme/web-app",
        "https://evil.example/github.com/acme/web-app",
        "git@evil.example:acme/web-app.git",
        "https://github.com/acme",
        "https://github.com/acme/web-app/tree/main",
        "https://github.com/acme/..",
        "/home/anna/github.com/acme/web-app.git",
        "file:///srv/acme/web-app.git",
        "./acme/web-app",
        "",
    ],
)
def test_an_address_elsewhere_names_no_repository(address: str) -> None:
    assert repo_of(address, "github.com") == ""


def test_the_port_of_a_forge_counts_for_http_and_not_for_ssh() -> None:
    assert repo_of("http://127.0.0.1:8080/acme/app.git", "127.0.0.1:8080") == "acme/app"
    assert repo_of("http://127.0.0.1:9090/acme/app.git", "127.0.0.1:8080") == ""
    assert repo_of("ssh://git@127.0.0.1:22/acme/app.git", "127.0.0.1:8080") == "acme/app"


def test_a_git_matches_only_its_own_repository() -> None:
    git = Git(id="acme-web-app", name="app", url="/srv/acme-web/app", repo="Acme/web-app")
    assert git.matches("acme/Web-App")
    assert not git.matches("acme-web/app")
    assert not git.matches("")
    assert not Git(id="acme-web-app", name="app", url="/srv/acme/web-app").matches("")


def test_each_repository_has_its_own_name_that_is_a_valid_git_id() -> None:
    parts = ("acme", "acme-web", "web-app", "app", "a_b", "a" * 30, "a" * 60, "a" * 61)
    names = (*parts, "web.app", ".github", "a.b.c", "-", "_")
    repos = [f"{owner}/{name}" for owner, name in itertools.product(parts, names)]
    made = {unique_name(repo) for repo in (*repos, "no slash", "no-slash", "üñí/ço", "a/b/c")}
    assert len(made) == len(repos) + 4
    assert all(re.fullmatch(ID_PATTERN, name) for name in made)
    assert unique_name("Acme/Shop") == unique_name("acme/shop") == "acme.shop"

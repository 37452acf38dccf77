"""Which authors the Sentinel accepts, and where the repositories of events are."""

from typing import Any

import pytest

from kingdom.court.sentinel.settings import GitHubSettings, SentinelSettings


def watching(**more: Any) -> SentinelSettings:
    return SentinelSettings(github=GitHubSettings(token="t", logins=("bot",), **more))  # noqa: S106


@pytest.mark.parametrize("repos", [("*",), ("*/*",), ("*/app",), ("acme*/app",), ("acme/*", "b?b/*"), ("acme*",)])
def test_strangers_are_accepted_if_a_repository_of_any_owner_matches(repos: tuple[str, ...]) -> None:
    assert watching(repos=repos).accepts_strangers


def test_strangers_are_accepted_by_default_unless_github_is_not_watched() -> None:
    assert watching().accepts_strangers
    assert not SentinelSettings().accepts_strangers
    assert not watching(repos=("acme/*", "bob/shop")).accepts_strangers


@pytest.mark.parametrize(
    ("api", "host"),
    [
        ("https://api.github.com", "github.com"),
        ("https://api.acme.ghe.com", "acme.ghe.com"),
        ("https://Git.acme.example/api/v3", "git.acme.example"),
        ("https://api.acme.example/api/v3", "api.acme.example"),
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
    ],
)
def test_the_host_of_repositories_is_derived_from_the_address_of_the_api(api: str, host: str) -> None:
    assert watching(api_url=api).repository_host == host
    assert SentinelSettings().repository_host == "github.com"

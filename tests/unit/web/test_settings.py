"""Settings that would expose sessions, or trust anyone, are refused."""

import pytest

from kingdom.access.rights import Right
from kingdom.access.settings import ProxySettings, WebSettings

PEOPLE: dict[str, tuple[Right, ...]] = {"dana": (Right.LOOK,)}


@pytest.mark.parametrize(
    "settings",
    [
        WebSettings(),
        WebSettings(address="localhost:9000"),
        WebSettings(address="[::1]:9000"),
        WebSettings(address="0.0.0.0:9000", url="https://kingdom.example"),
        WebSettings(address="0.0.0.0:9000", insecure=True),
        WebSettings(address="unix:/run/web.sock", url="https://kingdom.example", proxy=ProxySettings(people=PEOPLE)),
        WebSettings(proxy=ProxySettings(people=PEOPLE, secret="s")),  # noqa: S106 - a test
    ],
    ids=lambda settings: settings.address,
)
def test_settings_that_are_safe_are_accepted(settings: WebSettings) -> None:
    assert settings.why_unsafe() == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (WebSettings(address="0.0.0.0:9000"), "without https"),
        (WebSettings(address="192.0.2.7:9000", url="http://kingdom.example"), "without https"),
        (WebSettings(address="kingdom.example:9000"), "without https"),
        (WebSettings(proxy=ProxySettings(people=PEOPLE)), "anyone could claim a name"),
        (WebSettings(address="unix:/run/web.sock"), "set web.url"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.address,
)
def test_settings_that_are_unsafe_are_refused_with_a_way_out(settings: WebSettings, words: str) -> None:
    assert words in settings.why_unsafe()


@pytest.mark.parametrize("text", ["", "8700", "host:", "host:no", "host:99999", "unix:"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        WebSettings(address=text)


def test_a_server_on_every_address_answers_only_to_its_own_names() -> None:
    settings = WebSettings(address="0.0.0.0:9000", url="https://kingdom.example")
    assert settings.own_hosts(9000) == {"kingdom.example", "localhost:9000", "127.0.0.1:9000", "[::1]:9000"}
    assert WebSettings(address="192.0.2.7:9000", insecure=True).own_hosts(9000) >= {"192.0.2.7:9000"}


def test_an_own_origin_has_the_scheme_of_its_address() -> None:
    behind = WebSettings(address="127.0.0.1:9000", url="https://Kingdom.example/")
    assert behind.own_origins(9000) >= {"https://kingdom.example", "http://127.0.0.1:9000"}
    assert "http://kingdom.example" not in behind.own_origins(9000)
    assert "https://127.0.0.1:9000" not in behind.own_origins(9000)


def test_the_name_of_the_cookie_differs_between_ports_and_not_between_servers_behind_one_address() -> None:
    assert WebSettings().cookie_name(8700) != WebSettings().cookie_name(8701)
    for url in ("https://kingdom.example", "http://kingdom.example"):
        behind = WebSettings(url=url)
        assert behind.cookie_name(8700) == behind.cookie_name(8701)
    assert WebSettings(url="https://kingdom.example").cookie_name(1).startswith("__Host-")

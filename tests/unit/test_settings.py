import pytest

from kingdom.errors import Misconfigured
from kingdom.settings import Settings

NAMES = (
    *("KINGDOM_DATABASE_URL", "DATABASE_URL", "KINGDOM_SCHEMA", "KINGDOM_THROUGH_PGBOUNCER"),
    *("KINGDOM_LISTEN_URL", "KINGDOM_APP", "KINGDOM_ACTOR", "KINGDOM_METRICS_PREFIX"),
)


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_an_option_takes_precedence_over_our_variable_and_our_variable_over_the_common_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://common")
    assert Settings.read().database_url == "postgresql://common"
    monkeypatch.setenv("KINGDOM_DATABASE_URL", "postgresql://ours")
    assert Settings.read().database_url == "postgresql://ours"
    assert Settings.read(database_url="postgresql://given").database_url == "postgresql://given"


def test_without_a_setting_the_store_is_a_directory_in_the_current_one() -> None:
    assert Settings.read().database_url == "file:realm"


def test_everything_else_has_a_default() -> None:
    settings = Settings.read(database_url="postgresql://given")
    assert (settings.schema, settings.through_pgbouncer, settings.listen_url) == ("kingdom", False, None)
    assert (settings.application, settings.metrics_prefix) == (None, "kingdom")
    user, at, host = settings.actor.partition("@")
    assert user
    assert at
    assert host


def test_the_environment_sets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, f"value of {name}")
    monkeypatch.setenv("KINGDOM_THROUGH_PGBOUNCER", "Yes")
    monkeypatch.setenv("KINGDOM_METRICS_PREFIX", "everbit")
    assert Settings.read() == Settings(
        database_url="value of KINGDOM_DATABASE_URL",
        schema="value of KINGDOM_SCHEMA",
        through_pgbouncer=True,
        listen_url="value of KINGDOM_LISTEN_URL",
        application="value of KINGDOM_APP",
        actor="value of KINGDOM_ACTOR",
        metrics_prefix="everbit",
    )


def test_a_flag_other_than_yes_or_no_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINGDOM_THROUGH_PGBOUNCER", "perhaps")
    with pytest.raises(Misconfigured, match="KINGDOM_THROUGH_PGBOUNCER is 'perhaps'"):
        Settings.read(database_url="postgresql://given")


def test_a_dedicated_session_behind_pgbouncer_needs_a_direct_connection() -> None:
    direct = Settings(database_url="direct")
    assert direct.direct_url == "direct"
    behind = Settings(database_url="bouncer", through_pgbouncer=True, listen_url="server")
    assert behind.direct_url == "server"
    with pytest.raises(Misconfigured, match="KINGDOM_LISTEN_URL"):
        _ = Settings(database_url="bouncer", through_pgbouncer=True).direct_url


@pytest.mark.parametrize("prefix", ["1st", "my-shop", "shop ", "x{", "é"])
def test_a_prefix_that_no_metric_may_have_is_refused(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setenv("KINGDOM_METRICS_PREFIX", prefix)
    with pytest.raises(Misconfigured, match="KINGDOM_METRICS_PREFIX"):
        Settings.read(database_url="postgresql://given")

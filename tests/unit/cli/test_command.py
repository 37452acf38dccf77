"""Which store, settings and Generals a command uses. The commands run in this process."""

import json
from pathlib import Path

import pytest

from kingdom.bus.record import Record
from kingdom.cli.framework.command import CommandCall, settings_of
from kingdom.cli.framework.output import CommandOutput
from kingdom.settings import DEFAULT_URL
from tests.acceptance.sample_store import InProcessCli

BROKEN = "sentinel: {github: {token: env:NOT_SET_ANYWHERE, logins: [us]}}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory without a configured store."""
    monkeypatch.chdir(tmp_path)
    for name in ("KINGDOM_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcessCli:
    return InProcessCli(capsys, monkeypatch)


def test_an_unreadable_item_is_reported_once_however_often_it_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    call = CommandCall(CommandOutput(json=True), {})
    records = [Record(kind="number", id=str(number), state="there", doc={"is": number}) for number in ("one", 2)]
    assert [call.readable(records, dict[str, int]) for _ in range(2)] == [[{"is": 2}]] * 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n"), captured.err.startswith("one is left out: ")) == ("", 1, True)


def test_without_any_setting_the_default_store_is_used() -> None:
    assert settings_of().database_url == DEFAULT_URL


def test_the_settings_file_of_the_directory_names_the_store(here: Path) -> None:
    (here / "kingdom.yaml").write_text("database_url: file:elsewhere\n")
    assert settings_of().database_url == "file:elsewhere"


def test_a_file_given_with_config_is_read_instead_of_the_one_in_the_directory(here: Path) -> None:
    (here / "kingdom.yaml").write_text("database_url: [\n")
    (here / "named.yaml").write_text("database_url: file:named\n")
    assert settings_of(config="named.yaml").database_url == "file:named"


def test_a_file_without_a_store_uses_the_common_variable_or_the_directory_next_to_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "kingdom.yaml").write_text("time_zone: UTC\n")
    assert settings_of(config="sub/kingdom.yaml").database_url == "file:sub/realm"
    monkeypatch.setenv("DATABASE_URL", "file:common")
    assert settings_of(config="sub/kingdom.yaml").database_url == "file:common"


def test_a_store_on_the_command_line_takes_precedence_over_any_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "kingdom.yaml").write_text("database_url: file:elsewhere\n")
    assert settings_of(database_url=DEFAULT_URL).database_url == DEFAULT_URL
    monkeypatch.setenv("KINGDOM_DATABASE_URL", "file:mine")
    assert settings_of().database_url == "file:mine"


@pytest.mark.parametrize(("text", "reported"), [(None, "does not exist"), ("king: [\n", "not valid YAML")])
def test_a_file_given_with_config_must_be_valid_even_if_another_store_is_used(
    here: Path, cli: InProcessCli, monkeypatch: pytest.MonkeyPatch, text: str | None, reported: str
) -> None:
    monkeypatch.setenv("KINGDOM_DATABASE_URL", "file:mine")
    assert cli("send", "--type", "demo.hello").code == 0
    if text:
        (here / "named.yaml").write_text(text)
    done = cli("event", "list", "--config", "named.yaml")
    assert (done.code, "named.yaml" in done.err, reported in done.err) == (2, True, True), done
    (here / "named.yaml").write_text("database_url: env:NOT_SET_ANYWHERE\n")
    assert cli("event", "list", "--config", "named.yaml").code == 0


def test_config_check_shows_which_store_and_which_generals_are_used(
    here: Path, cli: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting() -> tuple[str, str]:
        document = cli("config", "check", "--json").document
        return document["database_url"], document["generals"]

    (here / "kingdom.yaml").write_text("time_zone: UTC\n")
    assert counting() == ("file:realm", "realm/generals")
    (here / "kingdom.yaml").write_text("database_url: file:store\n")
    assert counting() == ("file:store", "store/generals")
    monkeypatch.setenv("KINGDOM_DATABASE_URL", "postgresql://me:hush@127.0.0.1:9/shop")
    assert counting() == ("postgresql://me:***@127.0.0.1:9/shop", "generals")


def test_a_command_ignores_mistakes_in_settings_that_it_does_not_need(here: Path, cli: InProcessCli) -> None:
    (here / "kingdom.yaml").write_text("generals: ours\nking: {slotz: 1}\nsoldiers: {directory: space}\n")
    assert f"{here}/space/.gitconfig" in cli("git", "create", "app", "nowhere").err
    assert cli("general", "install", "gen-hello").code == 0
    assert cli("general", "list", "--json").document["directory"] == "ours"
    assert "gen-hello" in cli("--complete", "general", "show", "").out
    found = {each["name"]: each["found"] for each in cli("doctor", "--offline", "--json").document["checks"]}
    assert found["generals"] == "gen-hello"


def test_every_command_uses_the_same_store(here: Path, cli: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "kingdom.yaml").write_text("time_zone: UTC\n")
    monkeypatch.setenv("DATABASE_URL", "file:common")
    assert cli("send", "--type", "demo.hello", "--id", "evt-cli-1").code == 0
    for words in ("why evt-cli-1", "show evt-cli-1", "explain evt-cli-1", "ps", "bus stats"):
        assert cli(*words.split()).code == 0, words
    found = {each["name"]: each["found"] for each in cli("doctor", "--offline", "--json").document["checks"]}
    assert "common" in found["directory"]
    assert not (here / "realm").exists()


def test_commands_use_the_settings_file_given_with_config(here: Path, cli: InProcessCli) -> None:
    (here / "other.yaml").write_text("database_url: file:other\ngenerals: ours\n")
    named = ("--config", "other.yaml")
    assert cli("send", "--type", "demo.hello", "--id", "evt-cli-1", *named).code == 0
    assert cli("show", "evt-cli-1", "--json", *named).document["id"] == "evt-cli-1"
    assert cli("ps", *named).code == 0
    assert cli("general", "list", "--json", *named).document["directory"] == "ours"
    assert "evt-cli-1" in cli("--complete", "show", *named, "evt").out
    assert cli("ps").code == 1


def test_all_commands_find_the_generals_in_one_place(
    here: Path, cli: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def generals() -> str:
        cli("send", "--type", "demo.hello", "--id", "evt-cli-1")
        assert cli("general", "install", "gen-hello").code == 0
        [rule] = cli("why", "evt-cli-1", "--json").document["considered"]
        assert rule["general"] == "gen-hello"
        assert cli("show", "gen-hello").code == 0
        assert "gen-hello" in cli("--complete", "general", "show", "").out
        found = {each["name"]: each["found"] for each in cli("doctor", "--offline", "--json").document["checks"]}
        assert found["generals"] == "gen-hello"
        place: str = cli("general", "show", "gen-hello", "--json").document["directory"]
        return str(Path(place).relative_to(here))

    (here / "kingdom.yaml").write_text("channel: ours\n")
    assert generals() == "realm/generals/gen-hello"
    (here / "kingdom.yaml").write_text("database_url: file:store\n")
    assert generals() == "store/generals/gen-hello"
    monkeypatch.setenv("KINGDOM_DATABASE_URL", "file:mine")
    assert generals() == "mine/generals/gen-hello"
    (here / "kingdom.yaml").write_text("database_url: file:store\ngenerals: ours\n")
    assert generals() == "ours/gen-hello"


def test_a_read_only_command_needs_no_secret_of_the_court(here: Path, cli: InProcessCli) -> None:
    (here / "kingdom.yaml").write_text(BROKEN)
    assert cli("send", "--type", "demo.hello", "--id", "evt-cli-1").code == 0
    for words in ("event list", "assignment list", "why evt-cli-1", "explain evt-cli-1"):
        assert cli(*words.split()).code == 0, words
    assert cli("status", "--json").document["undecided"] == 1
    for words in ("up", "role king", "config check"):
        done = cli(*words.split())
        assert (done.code, "NOT_SET_ANYWHERE, which is not set" in done.err) == (2, True), words


def test_a_command_without_a_store_does_not_read_the_name_of_the_store(here: Path, cli: InProcessCli) -> None:
    assert cli("general", "create", "docs", "--directory", "ours").code == 0
    (here / "one.yaml").write_text("name: Greet\nworks:\n- name: greet\n  tasks: [Say hello.]\n")
    (here / "kingdom.yaml").write_text("database_url: env:NOT_SET_ANYWHERE\n")
    for words in ("template schema", "general schema", "template validate one.yaml", "general validate ours"):
        assert cli(*words.split()).code == 0, words
    assert cli("general", "validate").code == 2


def test_an_existing_realm_is_reported_without_its_password(
    here: Path, cli: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hush@127.0.0.1:9/shop")
    first, second = cli("init", "--json"), cli("init", "--json")
    assert json.loads(second.out)["store"] == json.loads(first.out)["store"] == "env:DATABASE_URL"
    (here / "kingdom.yaml").write_text("database_url: postgresql://me:hush@127.0.0.1:9/shop\ngenerals: ours\n")
    third = cli("init", "--json")
    assert "hush" not in third.out
    assert json.loads(third.out)["made"] == [str(here / "ours" / "gen-hello")]

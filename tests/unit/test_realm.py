import re
import stat
from pathlib import Path

import pytest

from kingdom.errors import Misconfigured
from kingdom.realm import EXAMPLE, Realm, read_realm, secrets_of, store_named_in, without_secrets

GITHUB = "sentinel:\n  github:\n    logins: [bot]\n    token: "


def read(directory: Path, text: str) -> Realm:
    file = directory / "kingdom.yaml"
    file.write_text(text)
    return read_realm(file)[0]


def complaint(directory: Path, text: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        read(directory, text)
    return str(caught.value).removeprefix(f"{directory}/")


def test_without_a_file_everything_has_its_default() -> None:
    assert read_realm(None) == (Realm(), Path())


def test_the_file_to_start_from_can_be_read_also_where_its_offers_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(tmp_path, EXAMPLE).database_url == f"file:{tmp_path}/realm"
    for name in ("GITHUB_TOKEN", "SLACK_BOT_TOKEN", "SLACK_APP_TOKEN"):
        monkeypatch.setenv(name, name.lower())
    realm = read(tmp_path, re.sub(r"(?m)^# (?=( |\w+:$))", "", EXAMPLE))
    assert realm.sentinel.github
    assert realm.envoy.slack
    assert (realm.sentinel.github.token, realm.envoy.slack.app_token) == ("github_token", "slack_app_token")


def test_one_channel_is_used_by_everybody_who_speaks(tmp_path: Path) -> None:
    realm = read(tmp_path, "channel: dev\n")
    assert [part.channel for part in (realm.king, realm.envoy, realm.chamberlain)] == ["dev"] * 3


def test_a_part_may_name_a_channel_of_its_own_even_the_default(tmp_path: Path) -> None:
    realm = read(tmp_path, "channel: dev\nking: {channel: kingdom}\nchamberlain: {channel: ops, every_seconds: 5}\n")
    assert (realm.king.channel, realm.envoy.channel, realm.chamberlain.channel) == ("kingdom", "dev", "ops")
    assert realm.chamberlain.every_seconds == 5


@pytest.mark.parametrize(
    "url",
    ["postgresql://anna:sword%20fish@db/realm", "postgresql://db/realm?password=sword%20fish&user=anna"],
)
def test_the_password_of_the_store_is_a_secret(url: str) -> None:
    assert secrets_of(Realm(database_url=url)) == {"sword fish"}
    assert secrets_of(Realm(database_url="host=db password=swordfish")) == {"swordfish"}


def test_folders_of_programs_begin_at_the_file_too(tmp_path: Path) -> None:
    soldiers = read(tmp_path, "soldiers: {agents: npm, path: [tools/bin, /opt/bin, ~/bin]}\n").soldiers
    assert soldiers.agents == f"{tmp_path}/npm"
    assert soldiers.path == (f"{tmp_path}/tools/bin", "/opt/bin", str(Path("~/bin").expanduser()))


def test_paths_begin_at_the_file(tmp_path: Path) -> None:
    realm = read(tmp_path, "database_url: file:store\nsoldiers: {directory: agents}\n")
    assert realm.database_url == f"file:{tmp_path}/store"
    assert realm.generals == f"{tmp_path}/store/generals"
    assert realm.soldiers.directory == f"{tmp_path}/agents"
    assert read(tmp_path, "generals: here\n").generals == "here"
    for url in ("file:/srv/realm", "file:///srv/realm", "file://localhost/srv/realm"):
        absolute = read(tmp_path, f"database_url: {url}\n")
        assert (absolute.database_url, absolute.generals) == ("file:/srv/realm", "/srv/realm/generals")


def test_with_a_database_the_generals_lie_beside_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, "database_url: postgresql://somewhere/db\n").generals == "generals"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time_zone: Mars/Base\n", "kingdom.yaml:1: time_zone: 'Mars/Base' is none; write one as Asia/Seoul"),
        ("\nking:\n  soldiers: 0\n", "kingdom.yaml:3: king.soldiers: Expected `int` >= 1"),
        ("king:\n  knights: 3\n", "kingdom.yaml:2: king.knights: there is no such field; there are: every_seconds,"),
        ("soldiers: {agent: nobody}\n", "kingdom.yaml:1: soldiers.agent: Invalid enum value 'nobody'"),
        ("envoy:\n  webhook: {port: 1}\n", "there are: url, secret"),
        (f"{GITHUB}x\n    webhook: {{url: x}}\n", "there are: secrets, host, port"),
        ("king: [\n", "this cannot be read as YAML"),
        ("channel: ''\n", "kingdom.yaml:1: channel: Expected `str` of length >= 1"),
    ],
)
def test_errors_name_the_line_the_field_and_what_is_wanted(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in complaint(tmp_path, text)


def test_a_missing_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="does not exist: `kingdom config example`"):
        read_realm(tmp_path / "kingdom.yaml")


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", "from-environment")
    monkeypatch.setenv("STORE", "postgresql://u:p@h/db")
    (tmp_path / "webhook").write_text("from-file\n")
    webhook = "    webhook: {secrets: ['file:webhook', plain]}\n"
    realm = read(tmp_path, f"database_url: env:STORE\n{GITHUB}env:BOT_TOKEN\n{webhook}")
    assert realm.database_url == "postgresql://u:p@h/db"
    assert realm.sentinel.github
    assert realm.sentinel.github.webhook
    secrets = (realm.sentinel.github.token, *realm.sentinel.github.webhook.secrets)
    assert secrets == ("from-environment", "from-file", "plain")


def test_a_secret_that_is_not_there_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert complaint(tmp_path, f"{GITHUB}env:NO_SUCH_VARIABLE\n") == (
        "kingdom.yaml:4: sentinel.github.token shall come from the environment variable NO_SUCH_VARIABLE,"
        " which is not set: set it"
    )
    assert "gone, which cannot be read: No such file" in complaint(tmp_path, f"{GITHUB}file:gone\n")
    assert "empty, which is empty: put it there" in complaint(tmp_path, f"{GITHUB}file:empty\n")


def test_what_is_shown_has_no_secret_in_it(tmp_path: Path) -> None:
    secrets = "database_url: postgresql://me:hush-1@host/db?password=hush-2\n"
    secrets += f"{GITHUB}hush-3\n    webhook: {{secrets: [hush-4, hush-5]}}\n"
    secrets += "envoy:\n  slack: {bot_token: hush-6, app_token: hush-7}\n"
    document = without_secrets(read(tmp_path, secrets))
    assert "hush" not in str(document)
    assert document["database_url"] == "postgresql://me:***@host/db?password=***"
    assert document["sentinel"]["github"]["webhook"]["secrets"] == ["***", "***"]


def test_an_error_beside_a_secret_does_not_show_it(tmp_path: Path) -> None:
    wrong = f"{GITHUB}hush\n    poll_seconds: never\n    webhook: {{secrets: hush}}\n"
    assert "hush" not in complaint(tmp_path, wrong)
    (tmp_path / "secret").write_bytes(b"\xff\xfehush")
    (tmp_path / "secret").chmod(stat.S_IRUSR)
    assert "hush" not in complaint(tmp_path, f"{GITHUB}file:secret\n")


def test_the_store_of_a_file_is_known_without_its_other_secrets(tmp_path: Path) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text("database_url: file:elsewhere\nsentinel: {github: {token: env:NOT_SET_ANYWHERE, logins: [us]}}\n")
    assert store_named_in(file) == f"file:{tmp_path / 'elsewhere'}"
    file.write_text("time_zone: UTC\n")
    assert store_named_in(file) == ""
    file.write_text("database_url: [\n")
    with pytest.raises(Misconfigured, match="kingdom config check"):
        store_named_in(file)


def test_the_shares_of_the_budget_and_the_memory_of_what_was_seen_are_said_once(tmp_path: Path) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text(
        "chamberlain: {budget: {warning_percent: 50}, retention: {seen_days: 3}}\n"
        "sentinel: {github: {token: t, logins: [us]}}\n"
    )
    realm, _ = read_realm(file)
    assert realm.king.warning_percent == 50
    assert realm.sentinel.github
    assert realm.sentinel.github.seen_days == 3

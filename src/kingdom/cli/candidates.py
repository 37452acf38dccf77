"""Completion candidates for the word under the cursor: nouns, verbs, options, and ids from the store."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kingdom.cli.nouns import ALIASES, WORDS
from kingdom.text import plain

# This is printed instead of candidates if the shell should complete file names.
FILES = ":files"
# Options about the store, and the names of their values in a CommandCall.
_SHARED = {"--config": "config", "--database-url": "database_url", "--schema": "schema", "--app": "application"}
_FILE_PARAMETERS = frozenset({"FILE", "DIR", "DIRECTORY", "DOCUMENT", "--config", "--directory", "--rules", "--html"})
# These verbs need a new name, so existing names are not offered.
_CREATING_VERBS = frozenset({"create", "from-workflow"})
_Candidate = tuple[str, str]


def print_candidates(words: Sequence[str]) -> None:
    """Print one candidate with its meaning per line. Print nothing if an error occurs."""
    *before, typed = words or [""]
    option, equals, value = typed.partition("=")
    # The shell passes --option=value as one word.
    joined = f"{option}{equals}" if equals and option.startswith("--") else ""
    if joined:
        before, typed = [*before, option], value
    try:
        found = list(candidates(before, typed))
    except Exception:  # noqa: BLE001 - an error must not appear while a person types
        return
    for word, meaning in found:
        # Text from the store is untrusted, and a newline would start another candidate.
        if word.isprintable() and (word.startswith(typed) or word == FILES):
            shown = plain(meaning)
            sys.stdout.write(f"{joined}{word}\t{shown}\n" if shown else f"{joined}{word}\n")


def candidates(before: Sequence[str], typed: str) -> Iterable[_Candidate]:
    """Return the candidates for the word under the cursor.

    `before` has the words before the cursor; `typed` is the part of the word that is already typed.
    """
    if not before:
        return [*WORDS.items(), ("--help", "Show the help."), ("--version", "Show the version.")]
    if before[0] == "help":
        return candidates(before[1:], typed)
    noun, *rest = [*ALIASES.get(before[0], (before[0],)), *before[1:]]
    from kingdom.cli.dispatch import command_of

    command: Any = command_of(noun)
    verb = noun
    while verbs := getattr(command, "commands", None):
        if not rest:
            return [(name, each.get_short_help_str(80)) for name, each in verbs.items()]
        verb = rest.pop(0)
        command = verbs[verb]
    return _command_candidates(noun, verb, command.params, rest, typed)


def _command_candidates(
    noun: str, verb: str, parameters: Sequence[Any], words: list[str], typed: str
) -> Iterable[_Candidate]:
    """Return the options of a command, or the values for the argument or option under the cursor."""
    options = {flag: each for each in parameters for flag in (*each.opts, *each.secondary_opts) if flag[0] == "-"}
    open_option, given, shared = _parse_words(words, options)
    if open_option is None and typed.startswith("-"):
        return [*_flags(options, words), ("--help", "Show the help.")]
    parameter = open_option or _argument(parameters, len(given))
    if parameter is None:
        return []
    if choices := getattr(parameter.type, "choices", ()):
        return [(choice, "") for choice in choices]
    metavar = (parameter.metavar or "").strip("[].")
    named = {metavar, *parameter.opts}
    if named & _FILE_PARAMETERS:
        return [(FILES, "")]
    if verb in _CREATING_VERBS and metavar == "NAME":
        return []
    from kingdom.cli.completion.live_ids import live_ids

    return live_ids(noun, named, given, typed, shared)


def _parse_words(words: Iterable[str], options: dict[str, Any]) -> tuple[Any, list[str], dict[str, str]]:
    """Return the option whose value comes next, the arguments so far, and the options about the store."""
    waiting, arguments, shared = "", [], {}
    for word in words:
        name, equals, value = word.partition("=")
        if waiting:
            if waiting in _SHARED:
                shared[_SHARED[waiting]] = word
            waiting = ""
        elif name in options and equals:
            if name in _SHARED:
                shared[_SHARED[name]] = value
        elif word in options:
            waiting = "" if options[word].is_flag else word
        elif not word.startswith("-"):
            arguments.append(word)
    return options.get(waiting), arguments, shared


def _argument(parameters: Iterable[Any], number: int) -> Any:
    """Return the parameter of the argument at a position; the last parameter can accept several arguments."""
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    if number < len(arguments):
        return arguments[number]
    return arguments[-1] if arguments and arguments[-1].nargs < 0 else None


def _flags(options: dict[str, Any], words: Sequence[str]) -> Iterator[_Candidate]:
    for flag, option in options.items():
        if flag.startswith("--") and (flag not in words or option.multiple):
            yield flag, option.help or ""

"""What a shell offers for the word under the cursor: nouns, verbs, options, and ids that are in the store right now."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from kingdom.cli.nouns import ALIASES, WORDS
from kingdom.text import plain

# Said instead of words where the shell shall offer its files.
FILES = ":files"
_SHARED = {"--config": "config", "--database-url": "database_url", "--schema": "schema", "--app": "application"}
_OF_FILES = frozenset({"FILE", "DIR", "DIRECTORY", "DOCUMENT", "--config", "--directory", "--rules", "--html"})
# Who makes a thing gives it a new name.
_MAKERS = frozenset({"create", "from-workflow"})
_Candidate = tuple[str, str]


def print_candidates(words: Sequence[str]) -> None:
    """Print a word and what it means per line, for a shell; nothing at all where something is wrong."""
    *before, begun = words or [""]
    option, equals, value = begun.partition("=")
    # One word for the shell, an option and its value for us.
    joined = f"{option}{equals}" if equals and option.startswith("--") else ""
    if joined:
        before, begun = [*before, option], value
    try:
        found = list(candidates(before, begun))
    except Exception:  # noqa: BLE001 - a person who types must not be disturbed
        return
    for word, meaning in found:
        # What is in the store was written by others, and a line here is one word.
        if word.isprintable() and (word.startswith(begun) or word == FILES):
            told = plain(meaning)
            sys.stdout.write(f"{joined}{word}\t{told}\n" if told else f"{joined}{word}\n")


def candidates(before: Sequence[str], begun: str) -> Iterable[_Candidate]:
    """Return what may follow the words before the cursor, where a word is begun."""
    if not before:
        return [*WORDS.items(), ("--help", "Show the help."), ("--version", "Show the version.")]
    if before[0] == "help":
        return candidates(before[1:], begun)
    noun, *rest = [*ALIASES.get(before[0], (before[0],)), *before[1:]]
    command = import_module("kingdom.cli.dispatch").command_of(noun)
    verb = noun
    while verbs := getattr(command, "commands", None):
        if not rest:
            return [(name, each.get_short_help_str(80)) for name, each in verbs.items()]
        verb = rest.pop(0)
        command = verbs[verb]
    return _of_command(noun, verb, command.params, rest, begun)


def _of_command(noun: str, verb: str, parameters: Sequence[Any], words: list[str], begun: str) -> Iterable[_Candidate]:
    """Return the options of a command, or what the argument or the option under the cursor may be."""
    options = {flag: each for each in parameters for flag in (*each.opts, *each.secondary_opts) if flag[0] == "-"}
    open_option, given, shared = _given(words, options)
    if open_option is None and begun.startswith("-"):
        return [*_flags(options, words), ("--help", "Show the help.")]
    parameter = open_option or _argument(parameters, len(given))
    if parameter is None:
        return []
    if choices := getattr(parameter.type, "choices", ()):
        return [(choice, "") for choice in choices]
    metavar = (parameter.metavar or "").strip("[].")
    named = {metavar, *parameter.opts}
    if named & _OF_FILES:
        return [(FILES, "")]
    if verb in _MAKERS and metavar == "NAME":
        return []
    live: Iterable[_Candidate] = import_module("kingdom.cli.live_ids").live_ids(noun, named, given, begun, shared)
    return live


def _given(words: Iterable[str], options: dict[str, Any]) -> tuple[Any, list[str], dict[str, str]]:
    """Return the option that waits for its value, the arguments so far, and which store was named."""
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
    """Return the argument with a number; the last one may take any number of words."""
    there = [each for each in parameters if each.param_type_name == "argument"]
    if number < len(there):
        return there[number]
    return there[-1] if there and there[-1].nargs < 0 else None


def _flags(options: dict[str, Any], words: Sequence[str]) -> Iterator[_Candidate]:
    for flag, option in options.items():
        if flag.startswith("--") and (flag not in words or option.multiple):
            yield flag, option.help or ""

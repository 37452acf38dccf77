"""Every command is documented: its help has an example that is a valid command, and its arguments are completed."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kingdom.cli.candidates import FILES, candidates
from kingdom.cli.completion.live_ids import sources_of
from kingdom.cli.dispatch import command_of
from kingdom.cli.nouns import ALIASES, NOUNS
from kingdom.court.records import ASSIGNMENTS
from kingdom.workflow.records import WORKFLOWS

_EXAMPLE = "Example: "
# Values that cannot be completed.
_FREE = {"NAME", "URL", "MODULE:OBJECT", "WORDS"}
_RUN = {"WORKFLOW", "RUN"}


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    verbs = getattr(command, "commands", None)
    if verbs is None or command.invoke_without_command:
        yield name, command
    for verb, each in (verbs or {}).items():
        yield from commands(f"{name} {verb}", each)


COMMANDS = {name: command for noun in NOUNS for name, command in commands(noun, command_of(noun))}


def examples(command: Any) -> list[str]:
    paragraphs = command.help.replace("\\[", "[").split("\n\n")
    return [each.removeprefix(_EXAMPLE) for each in paragraphs if each.startswith(_EXAMPLE)]


def lines(example: str) -> Iterator[list[str]]:
    """Yield the words of every use of `kingdom` in a line of a shell."""
    lexer = shlex.shlex(example, posix=True, punctuation_chars=";|<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";|<>"):
            if words[:1] == ["kingdom"]:
                yield words[1:]
            words = []
        else:
            words.append(word)


def parse(words: list[str]) -> str:
    """Read a line as the command line does, without running it; return the name of its command."""
    noun, *rest = [*ALIASES.get(words[0], (words[0],)), *words[1:]]
    name, command = noun, command_of(noun)
    while rest and rest[0] in getattr(command, "commands", {}):
        name, command = f"{name} {rest[0]}", command.commands[rest.pop(0)]
    assert name in COMMANDS
    command.make_context(name, rest)
    return name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_an_example_that_can_be_typed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One command looks for its file already while the arguments are parsed.
    (tmp_path / "kingdom.jsonl.gz").touch()
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[name]
    reported = examples(command)
    assert reported
    for example in reported:
        assert name in [parse(words) for words in lines(example)], example
    assert all(parameter.help for parameter in command.params if parameter.param_type_name == "option")


def test_an_example_that_cannot_be_typed_is_found() -> None:
    assert [parse(words) for words in lines("kingdom git list > x; edit it; kingdom send --type 'a b' | less")] == [
        "git list",
        "event send",
    ]
    for wrong in ("kingdom git list --nonsense", "kingdom git show", "kingdom role jester"):
        with pytest.raises(typer.TyperException):
            [parse(words) for words in lines(wrong)]
    with pytest.raises(AssertionError):
        [parse(words) for words in lines("kingdom git")]


def test_every_alias_is_short_for_a_command() -> None:
    assert [alias for alias, words in ALIASES.items() if " ".join(words) not in COMMANDS] == []


def test_every_argument_is_completed_unless_its_values_are_unknowable() -> None:
    def is_offered(name: str, arguments: list[Any], number: int) -> bool:
        metavar = (arguments[number].metavar or "").strip("[].")
        sources = sources_of(name.partition(" ")[0], [metavar])
        if _RUN & {*metavar.split("|")}:
            # An argument for a run also accepts its assignment.
            return {WORKFLOWS.name, ASSIGNMENTS.name} <= {*sources}
        if metavar in _FREE or sources:
            return True
        return bool(list(candidates([*name.split(), *(["x"] * number)], "")))

    missing = []
    for name, command in COMMANDS.items():
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        missing += [
            f"{name} {arguments[n].metavar}" for n in range(len(arguments)) if not is_offered(name, arguments, n)
        ]
    assert missing == []
    assert list(candidates(["template", "create"], "")) == [(FILES, "")]

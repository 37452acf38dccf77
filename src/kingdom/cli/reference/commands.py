"""The reference page of commands."""

from collections.abc import Iterator
from typing import Any

from kingdom.cli.dispatch import command_of
from kingdom.cli.nouns import ALIASES, GROUPS, NOUNS
from kingdom.cli.reference.markdown import beginning, code, table

_WORDS = """\
`kingdom COMMAND --help` shows the same. [JSON](json.md) describes everything that `--json` prints, and
[Configuration](configuration.md) describes `kingdom.yaml`.

Exit codes: 0 success, 1 failed or not found, 2 wrong usage or settings, 3 the store cannot be reached, 4 a run waits
for a person.
"""
_COMMON = "Common options"
_VALUES = {"int": "NUMBER", "float": "NUMBER", "path": "PATH"}
_EXAMPLE, _JSON = "Example:", "JSON:"


def page() -> str:
    """Return the page of the documentation."""
    return "\n".join([beginning("Commands", "cli", _WORDS), *_common(), *_groups()])


def commands_of(noun: str) -> Iterator[tuple[str, Any]]:
    """Yield the words and the object of each command of a noun."""
    yield from _walk(noun, command_of(noun))


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    # A group that can be called without a verb is a command too.
    if inner is None or command.invoke_without_command:
        yield words, command
    for name, each in (inner or {}).items():
        if not each.hidden:
            yield from _walk(f"{words} {name}", each)


def _groups() -> Iterator[str]:
    for title, nouns in GROUPS.items():
        yield f"## {title}\n"
        for noun, words in nouns.items():
            if noun in ALIASES:
                yield f"### kingdom {noun}\n\n{words} Short for `kingdom {' '.join(ALIASES[noun])}`.\n"
                continue
            for called, command in commands_of(noun):
                yield from _command(called, command)


def _command(words: str, command: Any) -> Iterator[str]:
    yield f"### kingdom {words}\n"
    paragraphs = (command.help or "").replace("\\[", "[").split("\n\n")
    for paragraph in paragraphs:
        text = " ".join(paragraph.split())
        if text.startswith(_EXAMPLE):
            yield f"Example: {code(text.removeprefix(_EXAMPLE).strip())}\n"
        elif text.startswith(_JSON):
            yield f"With `--json`: {text.removeprefix(_JSON).strip()}\n"
        elif text:
            yield f"{text}\n"
    own = [each for each in command.params if not each.hidden and not _is_common(each)]
    if own:
        yield from table(("Argument or option", "Default", "Meaning"), (_parameter(each) for each in own))


def _common() -> Iterator[str]:
    """Yield the options that almost all commands have."""
    found: dict[str, Any] = {}
    for noun in NOUNS:
        parameters = (each for _, command in commands_of(noun) for each in command.params)
        found |= {each.name: each for each in parameters if _is_common(each)}
    yield "Almost every command has these options; they are not repeated below.\n"
    yield from table(("Option", "Meaning"), ((_flags(each), each.help or "") for each in found.values()))


def _is_common(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) == _COMMON


def _parameter(parameter: Any) -> tuple[str, ...]:
    words = (getattr(parameter, "help", "") or "").replace("\\[", "[")
    return _flags(parameter), _default(parameter), words


def _flags(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper())
        many = "…" if parameter.nargs == -1 and not name.endswith("…") else ""
        return code(name + many)
    value = "" if parameter.is_flag else f" {_value(parameter)}"
    flags = [f"{flag}{value}" for flag in parameter.opts] + list(parameter.secondary_opts)
    return ", ".join(map(code, flags))


def _value(parameter: Any) -> str:
    """Return the choices of an option, or else the kind of its value."""
    choices = "|".join(getattr(parameter.type, "choices", ()))
    return str(choices or parameter.metavar or _VALUES.get(parameter.type.name.partition(" ")[0], "TEXT"))


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    shown = getattr(default, "value", default)
    if shown in (None, False, (), []) or callable(shown):
        return ""
    if shown is True:
        return code(parameter.opts[0])
    return code(str(shown))

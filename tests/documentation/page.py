"""Parse the commands of a documentation page, and the output that it shows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)[^`]*$")
_DIRECTION = re.compile(r"^\s*<!--\s*shell:\s*(?P<words>.*?)\s*-->\s*$")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_TERMINAL = re.compile(r"terminal(?:\s+until\s+\"(?P<until>[^\"]+)\")?")
_AFTER = re.compile(r"after\s+\"(?P<after>[^\"]+)\"")
_WORDS = re.compile(r"(?:[^,\"]|\"[^\"]*\")+")
_PROMPT = "$ "
CONSOLE = "console"
CHECKOUT, POSTGRES, STAND_INS = "checkout", "postgres", "stand-ins"
_SURROUNDINGS = {f"with {name}": name for name in (CHECKOUT, POSTGRES, STAND_INS)}


class UnclearPage(ValueError):
    """Raised for a page with an ambiguous or invalid block."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A fenced block of a page, with the line of its first content, and the shell comment above it."""

    line: int
    language: str
    lines: tuple[str, ...]
    direction: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, its line number, and the output that the page shows below it."""

    line: int
    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A block of commands, and how to run it."""

    line: int
    commands: tuple[Command, ...]
    # Run it in a separate terminal until the page ends; wait for this text, if there is one.
    is_terminal: bool = False
    until: str = ""
    # Start after a terminal has printed this.
    after: str = ""
    # The last command must fail.
    fails: bool = False
    surroundings: tuple[str, ...] = ()


def fenced_blocks(text: str) -> Iterator[Fenced]:
    """Yield every fenced block of a page."""
    lines = text.splitlines()
    at, direction = 0, ""
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        at += 1
        if opening is None:
            found = _DIRECTION.match(lines[at - 1])
            if direction and (found or lines[at - 1].strip()):
                raise UnclearPage(f"line {at}: a shell comment must be directly above a console block")
            direction = found["words"] if found else direction
            continue
        indent = len(opening["indent"])
        end = _end_of_fence(lines, at, opening["ticks"], indent)
        content = tuple(line[indent:] if not line[:indent].strip() else line for line in lines[at:end])
        if direction and opening["language"] != CONSOLE:
            raise UnclearPage(f"line {at}: only a console block can have a shell comment above it")
        yield Fenced(at + 1, opening["language"], content, direction)
        at, direction = end + 1, ""
    if direction:
        raise UnclearPage("the page ends with a shell comment and no block below it")


def console_blocks(text: str) -> list[Block]:
    """Return the blocks of commands of a page, in order."""
    blocks = [_block(fenced) for fenced in fenced_blocks(text) if fenced.language == CONSOLE]
    for late in blocks[1:]:
        if CHECKOUT in late.surroundings:
            raise UnclearPage(f"line {late.line}: only the first block of a page can ask for a checkout")
    return blocks


def commands_in(fenced: Fenced) -> list[Command]:
    """Return the commands of a block, each with the output below it."""
    commands: list[Command] = []
    at = 0
    while at < len(fenced.lines):
        if fenced.lines[at].startswith(_PROMPT):
            end = _end_of_command(fenced, at)
            typed = "\n".join((fenced.lines[at].removeprefix(_PROMPT), *fenced.lines[at + 1 : end]))
            commands.append(Command(fenced.line + at, typed))
            at = end
            continue
        if not commands:
            raise UnclearPage(f"line {fenced.line + at}: a console block begins with a command, `{_PROMPT}…`")
        last = commands[-1]
        commands[-1] = Command(last.line, last.text, (*last.shown, fenced.lines[at]))
        at += 1
    return [Command(each.line, each.text, _trimmed(each.shown)) for each in commands]


def _end_of_fence(lines: list[str], at: int, ticks: str, indent: int) -> int:
    # A deeper indentation belongs to the text of the block, as in CommonMark.
    closing = re.compile(rf" {{0,{indent + 3}}}{re.escape(ticks)}{re.escape(ticks[0])}*\s*")
    for end in range(at, len(lines)):
        if closing.fullmatch(lines[end]):
            return end
    raise UnclearPage(f"line {at}: the block is not closed")


def _block(fenced: Fenced) -> Block:
    commands = tuple(commands_in(fenced))
    if not commands:
        raise UnclearPage(f"line {fenced.line}: a console block without a command")
    is_terminal, until, after, fails = False, "", "", False
    surroundings: list[str] = []
    for word in (each.strip() for each in _WORDS.findall(fenced.direction)):
        if terminal := _TERMINAL.fullmatch(word):
            is_terminal, until = True, terminal["until"] or ""
        elif awaited := _AFTER.fullmatch(word):
            after = awaited["after"]
        elif word == "fails":
            fails = True
        elif word in _SURROUNDINGS:
            surroundings.append(_SURROUNDINGS[word])
        else:
            raise UnclearPage(f"line {fenced.line - 1}: {word!r} is unknown in a shell comment")
    return Block(fenced.line, commands, is_terminal, until, after, fails, tuple(surroundings))


def _end_of_command(fenced: Fenced, at: int) -> int:
    """Return the index after a command, which continues after a backslash and within a here-document."""
    lines = fenced.lines
    end = at + 1
    while lines[end - 1].endswith("\\") and end < len(lines):
        end += 1
    for found in _HERE_DOCUMENT.finditer("\n".join(lines[at:end])):
        try:
            end += [line.strip() for line in lines[end:]].index(found["end"]) + 1
        except ValueError as error:
            raise UnclearPage(f"line {fenced.line + at}: the here-document has no end {found['end']}") from error
    return end


def _trimmed(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Drop empty lines at the end, which only separate commands."""
    kept = list(lines)
    while kept and not kept[-1].strip():
        kept.pop()
    return tuple(kept)

"""Mutants of SQL: statements are split into words, and each word that a guarantee may depend on is a site."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.mutants.mutant import Mutant, shown

_NAME = re.compile(r"^-- (?:name|fragment): (\w+)$", re.MULTILINE)
_WORD = re.compile(
    r"(?P<space>\s+|--[^\n]*)|(?P<word>'(?:[^']|'')*'|%\(\w+\)s|[A-Za-z_][\w.]*|\d+|::|<=|>=|<>|\|\||[^\w\s])"
)
# Words that end the condition of a WHERE, outside of parentheses.
_CONDITION_ENDS = frozenset({"ORDER", "LIMIT", "FOR", "GROUP", "RETURNING", "UNION", "HAVING", "ON", ";"})
_ORDER_ENDS = frozenset({"LIMIT", "FOR", "RETURNING", "UNION", "ON", ";"})
_LIST_ENDS = frozenset({"WHERE", "FROM", "RETURNING", ";"})
_OPPOSITE = {
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
    "greatest": "least",
    "least": "greatest",
    "min": "max",
    "max": "min",
    "bool_and": "bool_or",
}
# Columns that only people read.
_ONLY_SHOWN = frozenset(
    {"updated_at", "last_attempt_at", "last_error_code", "last_error_message", "history", "reason", "actor"}
)


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int
    depth: int


def statement_mutants(file: str, source: str) -> Iterator[Mutant]:
    """Return every mutant of the named statements and fragments of a file."""
    names = list(_NAME.finditer(source))
    for number, name in enumerate(names):
        end = names[number + 1].start() if number + 1 < len(names) else len(source)
        words = list(_words(source, name.end(), end))
        for damage, start, stop, text in _damages(source, words):
            yield Mutant(file, name[1], damage, source.count("\n", 0, start) + 1, start, stop, text)


def _words(source: str, start: int, end: int) -> Iterator[_Word]:
    """Split a statement into words. Parentheses and CASE … END increase the depth."""
    depth = 0
    for found in _WORD.finditer(source, start, end):
        if found["word"] is None:
            continue
        text = found["word"]
        if text in (")", "END"):
            depth -= 1
        yield _Word(text, found.start(), found.end(), depth)
        if text in ("(", "CASE"):
            depth += 1


_Damage = tuple[str, int, int, str]


def _damages(source: str, words: list[_Word]) -> Iterator[_Damage]:
    for number, word in enumerate(words):
        following = [each.text for each in words[number + 1 : number + 3]]
        match word.text, following:
            case "WHERE", _:
                yield from _predicates(source, words, number)
            case "FOR", ["UPDATE" | "KEY", *_]:
                yield from _locks(words, number)
            case "ORDER", ["BY", *_]:
                yield from _orders(source, words, number)
            case "SET", _:
                yield from _assignments(source, words, number)
            case "'infinity'", _ if words[number - 1].text in ("ELSE", "THEN"):
                yield "makes due what should wait", word.start, word.end, "clock_timestamp()"
            case _:
                yield from _turned(source, words, number)


def _turned(source: str, words: list[_Word], number: int) -> Iterator[_Damage]:
    """Replace a word by its opposite."""
    word, before = words[number], words[number - 1].text
    following = [each.text for each in words[number + 1 : number + 3]]
    match word.text, following:
        case "NOT", ["EXISTS" | "IN" as what, *_]:
            yield f"turns NOT {what} around{_near(source, word)}", word.start, words[number + 1].start, ""
        case "IS", ["NOT", "NULL"]:
            yield f"turns {before} IS NOT NULL around", word.start, words[number + 2].end, "IS NULL"
        case "IS", ["NULL", *_]:
            yield f"turns {before} IS NULL around", word.start, words[number + 1].end, "IS NOT NULL"
        case ("+" | "-") as sign, ["1", *_]:
            yield f"forgets {sign} 1", word.start, words[number + 1].end, f"{sign} 0"
        case text, [*_] if text in _OPPOSITE and (not text.isidentifier() or following[:1] == ["("]):
            yield f"takes {text} for {_OPPOSITE[text]}{_near(source, word)}", word.start, word.end, _OPPOSITE[text]


def _near(source: str, word: _Word) -> str:
    """Return the rest of the line, which distinguishes equal words."""
    return f" in {shown(source[word.start : source.find(chr(10), word.start)])!r}"


def _predicates(source: str, words: list[_Word], where: int) -> Iterator[_Damage]:
    """Drop each condition of a WHERE. In a writing statement, also write nothing at all."""
    depth = words[where].depth
    parts: list[list[_Word]] = [[]]
    for word in words[where + 1 :]:
        if word.depth < depth or (word.depth == depth and word.text in _CONDITION_ENDS):
            break
        if word.depth == depth and word.text == "AND":
            parts.append([])
        else:
            parts[-1].append(word)
    for part in filter(None, parts):
        condition = source[part[0].start : part[-1].end]
        yield f"drops the predicate {shown(condition)!r}", part[0].start, part[-1].end, "true"
    if _writes(words, where) and parts[0]:
        condition = source[parts[0][0].start : parts[-1][-1].end]
        yield (
            f"forgets to write where {shown(condition)!r}",
            parts[0][0].start,
            parts[-1][-1].end,
            f"false AND ({condition})",
        )


def _writes(words: list[_Word], where: int) -> bool:
    """Return whether this WHERE belongs to an UPDATE or a DELETE."""
    depth = words[where].depth
    for number in range(where - 1, -1, -1):
        word = words[number]
        if word.depth < depth:
            return False
        if word.depth == depth and word.text in ("UPDATE", "DELETE", "SELECT", "INSERT", ";"):
            return word.text in ("UPDATE", "DELETE") and words[number - 1].text not in ("FOR", "DO")
    return False


def _locks(words: list[_Word], start: int) -> Iterator[_Damage]:
    end = start + (1 if words[start + 1].text == "UPDATE" else 2)
    lock = " ".join(word.text for word in words[start : end + 1])
    if [word.text for word in words[end + 1 : end + 3]] == ["SKIP", "LOCKED"]:
        yield "drops SKIP LOCKED", words[end + 1].start, words[end + 2].end, ""
        end += 2
    yield f"drops the lock {lock}", words[start].start, words[end].end, ""


def _orders(source: str, words: list[_Word], order: int) -> Iterator[_Damage]:
    """Reverse an order. Without any order, an index scan could still return the right one by chance."""
    keys = list(_items(words, order + 2, words[order].depth, _ORDER_ENDS))
    if not keys or any(word.text == "DESC" for key in keys for word in key):
        return
    start, end = keys[0][0].start, keys[-1][-1].end
    turned = ", ".join(f"{source[key[0].start : key[-1].end]} DESC" for key in keys)
    yield f"turns ORDER BY {shown(source[start:end])} around", start, end, turned


def _assignments(source: str, words: list[_Word], start: int) -> Iterator[_Damage]:
    """Leave out each column that an UPDATE sets."""
    items = list(_items(words, start + 1, words[start].depth, _LIST_ENDS))
    if len(items) < 2:
        return
    for number, item in enumerate(items):
        if item[0].text in _ONLY_SHOWN:
            continue
        first, last = item[0], item[-1]
        begin, end = (first.start, items[1][0].start) if number == 0 else (items[number - 1][-1].end, last.end)
        yield f"leaves {shown(source[first.start : last.end])!r} out", begin, end, ""


def _items(words: list[_Word], start: int, depth: int, ends: Iterable[str]) -> Iterator[list[_Word]]:
    """Return the items of a comma-separated list, up to a word that ends it."""
    item: list[_Word] = []
    for word in words[start:]:
        if word.depth < depth or (word.depth == depth and word.text in ends):
            break
        if word.depth == depth and word.text == ",":
            yield item
            item = []
        else:
            item.append(word)
    if item:
        yield item

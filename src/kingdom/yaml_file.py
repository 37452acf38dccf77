"""YAML files of people: read into a type, with errors that name the line and the field, and written for people."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import yaml
from yaml.constructor import ConstructorError

from kingdom.errors import Misconfigured

_LINE_WIDTH = 100
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>.*)`", re.DOTALL)
_NO_CHOICE = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<kinds>[^`]+)`(?:, got `(?P<got>[^`]+)`)?(?P<limit>.*)", re.DOTALL)
_LIMIT = re.compile(r" (?P<length>of length )?(?P<sign>[<>]=?) (?P<bound>\S+)")
_PATTERN = re.compile(r" matching regex (?P<pattern>.*)", re.DOTALL)
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a block of fields",
    "datetime": "a moment",
    "date": "a date",
}
_GOT = {**_KINDS, "float": "a decimal number"}
_SIGNS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
_T = TypeVar("_T", bound=msgspec.Struct)


def read_yaml(text: str, source: str, kind: type[_T], under: Mapping[str, type[msgspec.Struct]]) -> _T:
    """Read a file as a type; `source` names it in errors, `under` tells the type of what stands under some fields.

    A field is named by its path, as in `envoy.webhook`, or where it means the same everywhere by its name alone.
    """
    root, document = _parsed(text, source)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise Misconfigured(_explained(str(error), root, source, {**under, "": kind})) from error


def place_in(text: str, source: str, path: Sequence[str | int]) -> str:
    """Return where a field of a file stands: the file and the line."""
    root, _ = _parsed(text, source)
    return f"{source}:{_line(root, list(path))}"


def write_yaml(document: Any) -> str:
    """Return a document as a file."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_LINE_WIDTH)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def in_plain_words(said: str) -> str:
    """Return what the reader of types has to say about a value, for somebody who wrote the file."""
    if missing := _MISSING_FIELD.fullmatch(said):
        return f"the field {missing['field']} is missing"
    if choice := _NO_CHOICE.fullmatch(said):
        return f"{choice['value']} is none of the values that it can have"
    expected = _EXPECTED.fullmatch(said)
    if expected is None:
        return said
    kinds = [_KINDS.get(kind, kind) for kind in expected["kinds"].split(" | ") if kind != "null"]
    words = f"must be {' or '.join(kinds)}"
    if limit := _LIMIT.fullmatch(expected["limit"]):
        length = "with a length of" if limit["length"] else "of"
        return f"{words} {length} {_SIGNS[limit['sign']]} {limit['bound'].removesuffix('.0')}"
    if pattern := _PATTERN.fullmatch(expected["limit"]):
        return f"{words} that fits the pattern {pattern['pattern']}"
    got = expected["got"]
    if got == "null":
        return f"{words}, and nothing stands there"
    if got == "bool" and _KINDS["str"] in kinds:
        return f"{words}, not {_GOT[got]}: put it in quotes, since YAML reads on, off, yes and no as such"
    return f"{words}, not {_GOT.get(got, got)}" if got else words


class _Loader(yaml.SafeLoader):
    """Tells where a value stands that is none, such as a day that no month has."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as PyYAML has it
        if node in self.recursive_objects:
            raise ConstructorError(None, None, "an alias contains itself: write it out", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ConstructorError(None, None, str(error), node.start_mark) from error


def _parsed(text: str, source: str) -> tuple[yaml.Node | None, object]:
    """Return the only YAML document of a text, as nodes that know their lines and as values."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, None
        _refuse_bad_keys(root, source)
        return root, loader.construct_object(root, deep=True)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise Misconfigured(f"{place}: this cannot be read as YAML: {words}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Misconfigured(f"{source}: this cannot be read as YAML: {error}") from error


def _refuse_bad_keys(root: yaml.Node, source: str) -> None:
    for mapping in _mappings(root):
        seen: set[str] = set()
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Misconfigured(f"{source}:{key.start_mark.line + 1}: the name of a field must be a word")
            if key.value in seen:
                raise Misconfigured(f"{source}:{key.start_mark.line + 1}: {key.value} stands here twice: keep one")
            seen.add(key.value)


def _mappings(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _explained(words: str, root: yaml.Node | None, source: str, under: Mapping[str, type[msgspec.Struct]]) -> str:
    """Return an error of the content with its line and its place in the file."""
    place = _PLACE.search(words)
    said = words[: place.start()] if place else words
    path = place["path"] if place else ""
    steps = [step["field"] or int(step["index"]) for step in _STEP.finditer(path)]
    if unknown := _UNKNOWN_FIELD.fullmatch(said):
        fields = [step for step in steps if isinstance(step, str)]
        entry = under.get(".".join(fields)) or under[fields[-1] if fields else ""]
        steps.append(unknown["field"])
        path += f".{unknown['field']}"
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(entry))
        said = f"there is no such field; there are: {known}"
    else:
        said = in_plain_words(said)
    shown = path.lstrip(".") or "the file"
    return f"{source}:{_line(root, steps)}: {shown}: {said}"


def _line(node: yaml.Node | None, steps: list[str | int]) -> int:
    """Return the line that a path leads to, as far as it can be followed."""
    line = node.start_mark.line if node else 0
    for step in steps:
        if isinstance(node, yaml.MappingNode):
            found = {key.value: (key, value) for key, value in node.value}
            if step not in found:
                break
            key, node = found[step]
            line = key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return line + 1

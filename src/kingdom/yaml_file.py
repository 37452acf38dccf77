"""Read YAML files into types, with errors that show the line and the field, and write YAML for people."""

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
    "datetime": "a date and time",
    "date": "a date",
}
_GOT = {**_KINDS, "float": "a decimal number"}
_SIGNS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
_T = TypeVar("_T", bound=msgspec.Struct)


def read_yaml(text: str, source: str, kind: type[_T], block_types: Mapping[str, type[msgspec.Struct]]) -> _T:
    """Read a file as a type. `source` is the name of the file in errors.

    `block_types` has the type of each nested block, by its path, such as `envoy.webhook`, or by its name alone if every
    block with this name has the same type.
    """
    root, document = _parse(text, source)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise Misconfigured(_explain(str(error), root, source, {**block_types, "": kind})) from error


def place_in(text: str, source: str, path: Sequence[str | int]) -> str:
    """Return the file and line of a field."""
    root, _ = _parse(text, source)
    return f"{source}:{_line(root, list(path))}"


def write_yaml(document: Any) -> str:
    """Return a document as YAML text."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_LINE_WIDTH)


class _Dumper(yaml.SafeDumper):
    """Writes each text of several lines as a YAML block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def explain_in_plain_words(message: str) -> str:
    """Rewrite an error message of msgspec for the person who wrote the file."""
    if missing := _MISSING_FIELD.fullmatch(message):
        return f"the field {missing['field']} is missing"
    if choice := _NO_CHOICE.fullmatch(message):
        return f"{choice['value']} is not one of the allowed values"
    expected = _EXPECTED.fullmatch(message)
    if expected is None:
        return message
    kinds = [_KINDS.get(kind, kind) for kind in expected["kinds"].split(" | ") if kind != "null"]
    words = f"must be {' or '.join(kinds)}"
    if limit := _LIMIT.fullmatch(expected["limit"]):
        length = "with a length of" if limit["length"] else "of"
        return f"{words} {length} {_SIGNS[limit['sign']]} {limit['bound'].removesuffix('.0')}"
    if pattern := _PATTERN.fullmatch(expected["limit"]):
        return f"{words} that matches the pattern {pattern['pattern']}"
    got = expected["got"]
    if got == "null":
        return f"{words}, but it is empty"
    if got == "bool" and _KINDS["str"] in kinds:
        return f"{words}, not {_GOT[got]}: put it in quotes, because YAML reads on, off, yes and no as true or false"
    return f"{words}, not {_GOT.get(got, got)}" if got else words


class _Loader(yaml.SafeLoader):
    """Reports the line of an invalid value, such as a date that does not exist."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - the signature of PyYAML
        if node in self.recursive_objects:
            raise ConstructorError(None, None, "an alias contains itself: write out its content", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ConstructorError(None, None, str(error), node.start_mark) from error


def _parse(text: str, source: str) -> tuple[yaml.Node | None, object]:
    """Return the single YAML document of a text, as nodes with line numbers and as values."""
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
        raise Misconfigured(f"{place}: this is not valid YAML: {words}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Misconfigured(f"{source}: this is not valid YAML: {error}") from error


def _refuse_bad_keys(root: yaml.Node, source: str) -> None:
    for mapping in _mappings(root):
        seen: set[str] = set()
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Misconfigured(f"{source}:{key.start_mark.line + 1}: a field name must be text")
            if key.value in seen:
                raise Misconfigured(f"{source}:{key.start_mark.line + 1}: {key.value} appears twice: remove one")
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


def _explain(words: str, root: yaml.Node | None, source: str, block_types: Mapping[str, type[msgspec.Struct]]) -> str:
    """Return an error message with the line and the path of the field."""
    place = _PLACE.search(words)
    message = words[: place.start()] if place else words
    path = place["path"] if place else ""
    steps = [step["field"] or int(step["index"]) for step in _STEP.finditer(path)]
    if unknown := _UNKNOWN_FIELD.fullmatch(message):
        fields = [step for step in steps if isinstance(step, str)]
        entry = block_types.get(".".join(fields)) or block_types[fields[-1] if fields else ""]
        steps.append(unknown["field"])
        path += f".{unknown['field']}"
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(entry))
        message = f"unknown field; known fields: {known}"
    else:
        message = explain_in_plain_words(message)
    shown = path.lstrip(".") or "the file"
    return f"{source}:{_line(root, steps)}: {shown}: {message}"


def _line(node: yaml.Node | None, steps: list[str | int]) -> int:
    """Return the line of a field, or of the nearest enclosing block if the field is missing."""
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

"""JSON schemas of documents that Kingdom prints or sends."""

from collections.abc import Sequence
from dataclasses import is_dataclass
from datetime import datetime
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from kingdom.views.log_lines import LogLine


def output_schemas(documents: Sequence[Any], references: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the schema of each document type, and by name the schemas that they refer to.

    Each `$ref` is `references` followed by such a name.
    """
    kinds = _kinds(documents)
    every, shapes = msgspec.json.schema_components([*documents, *kinds], ref_template=f"{references}{{name}}")
    for kind, schema in zip(kinds, every[len(documents) :], strict=True):
        _describe_output(kind, shapes[str(schema["$ref"]).removeprefix(references)])
    return list(every[: len(documents)]), shapes


def _kinds(documents: Sequence[Any]) -> list[type[Any]]:
    """Return every class that has fields and occurs in these types."""
    kinds: dict[type[Any], None] = {}
    remaining: list[Any] = list(msgspec.inspect.multi_type_info(documents))
    while remaining:
        each = remaining.pop()
        if isinstance(each, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if each.cls in kinds:
                continue
            kinds[each.cls] = None
        if isinstance(each, msgspec.inspect.Type | msgspec.inspect.Field):
            remaining += [getattr(each, name) for name in each.__struct_fields__]
        elif isinstance(each, tuple):
            remaining += each
    return list(kinds)


def _describe_output(kind: type[Any], shape: dict[str, Any]) -> None:
    """Make a schema describe output instead of input: mark the fields that are always present, and allow others."""
    # The class of a generic type, such as Page[Workflow], has the hints.
    kind = get_origin(kind) or kind
    hints = get_type_hints(kind)
    names = {name: name for name in hints}
    always = set(names)
    if not is_dataclass(kind):
        fields = msgspec.structs.fields(kind)
        names = {each.name: each.encode_name for each in fields}
        omits = kind.__struct_config__.omit_defaults
        always = {each.name for each in fields if (each.required if omits else each.default is not msgspec.UNSET)}
    shape["required"] = [names[name] for name in names if name in always]
    shape.pop("additionalProperties", None)
    if kind is LogLine:
        shape["additionalProperties"] = True
    for name, printed in names.items():
        schema = shape["properties"][printed]
        schema.pop("default", None)
        if datetime in (hints[name], *get_args(hints[name])):
            next(each for each in schema.get("anyOf", [schema]) if each.get("type") == "string")["format"] = "date-time"

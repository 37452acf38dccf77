"""The JSON form and the JSON type of a dataclass."""

from dataclasses import fields
from typing import Any, get_type_hints

import msgspec


def to_json_object(thing: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON object with its fields in camelCase."""
    return {_camel(each.name): getattr(thing, each.name) for each in fields(thing)}


def camel_case_struct(
    kind: type[Any], name: str = "", *, without: tuple[str, ...] = (), **more: Any
) -> type[msgspec.Struct]:
    """Return the type of the JSON objects that `to_json_object` returns for a dataclass.

    `without` names fields to leave out, and `more` has fields to add. With either, the type needs its own name.
    """
    hints = get_type_hints(kind)
    own = [(each.name, hints[each.name]) for each in fields(kind) if each.name not in without]
    return msgspec.defstruct(
        name or kind.__name__,
        [*more.items(), *own],
        rename="camel",
        namespace={"__doc__": kind.__doc__},
        module=kind.__module__,
    )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))

"""The JSON type of a dataclass."""

from dataclasses import fields
from typing import Any, get_type_hints

import msgspec


def camel(kind: type[Any], name: str = "", *, without: tuple[str, ...] = (), **more: Any) -> type[msgspec.Struct]:
    """Return the type that `to_json_object` prints for a dataclass; one with other fields needs a name."""
    hints = get_type_hints(kind)
    own = [(each.name, hints[each.name]) for each in fields(kind) if each.name not in without]
    return msgspec.defstruct(
        name or kind.__name__,
        [*more.items(), *own],
        rename="camel",
        namespace={"__doc__": kind.__doc__},
        module=kind.__module__,
    )

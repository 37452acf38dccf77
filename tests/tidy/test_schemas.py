"""Check that the published schemas are the generated ones, with a description for every field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kingdom.cli.schemas.described import schema_of
from kingdom.cli.schemas.general import general_schema
from kingdom.cli.schemas.settings import settings_schema
from kingdom.cli.schemas.template import template_schema

DOCS = Path(__file__).parents[2] / "docs"


class Colors(msgspec.Struct):
    """The colors of a wall."""

    wall: str
    door: str = "red"


@pytest.mark.parametrize(
    ("page", "noun", "schema"),
    [
        ("kingdom.schema.json", "config", settings_schema),
        ("general.schema.json", "general", general_schema),
        ("template.schema.json", "template", template_schema),
    ],
)
def test_the_published_schema_is_the_generated_one(page: str, noun: str, schema: Callable[[], dict[str, Any]]) -> None:
    generated = msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode()
    hint = f"run: .venv/bin/kingdom {noun} schema > docs/{page}"
    assert (DOCS / page).read_text(encoding="utf-8") == f"{generated}\n", hint


@pytest.mark.parametrize("words", [{}, {"Colors": {"wall": "Its own."}}, {"Walls": {"wall": "Its own."}}])
def test_a_field_without_a_description_or_a_description_without_a_field_is_an_error(
    words: dict[str, dict[str, str]],
) -> None:
    with pytest.raises(LookupError, match="add or remove"):
        schema_of(Colors, words)


def test_the_meaning_of_a_field_is_shown_next_to_it() -> None:
    schema = schema_of(Colors, {"Colors": {"wall": "Its own.", "door": "Another one."}})
    assert schema["$defs"]["Colors"]["properties"]["door"] == {
        "type": "string",
        "default": "red",
        "description": "Another one.",
    }


def test_the_schema_of_a_template_knows_its_fields_and_forbids_others() -> None:
    work = template_schema()["$defs"]["WorkEntry"]
    assert {"name", "tasks", "gitRefs", "pauseAfter"} <= work["properties"].keys()
    assert (work["required"], work["additionalProperties"]) == (["name", "tasks"], False)
    assert {each.get("type") for each in work["properties"]["tasks"]["items"]["anyOf"]} == {"string", None}

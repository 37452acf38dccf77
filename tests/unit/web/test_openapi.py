"""The stored description of the API is the generated one."""

from pathlib import Path

from kingdom.web.openapi import document

FILE = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"


def test_the_description_in_the_reference_is_the_generated_one() -> None:
    hint = "run: .venv/bin/python -m kingdom.web.openapi > docs/reference/openapi.json"
    assert FILE.read_bytes() == document(), hint

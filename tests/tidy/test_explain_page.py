"""Check that the page names exactly the fields of `kingdom explain --json`."""

import re
from pathlib import Path

import msgspec
import pytest

from kingdom.court.explain import timeline
from kingdom.court.explain.timeline import MomentKind

PAGE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
STRUCTS = [
    timeline.Timeline,
    timeline.EventOrigin,
    timeline.Strand,
    timeline.WorkSpan,
    timeline.QuerySpan,
    timeline.QuestionSpan,
    timeline.PetitionOutput,
    timeline.EffectAttempt,
    timeline.Moment,
]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_the_page_names_the_fields_of_each_object(struct: type[msgspec.Struct]) -> None:
    (row,) = re.findall(rf"^\| {struct.__name__} \| (.*) \|$", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [field.name for field in msgspec.structs.fields(struct)]


def test_the_page_shows_every_kind_of_moment() -> None:
    assert [kind for kind in MomentKind if f"`{kind}`" not in PAGE] == []

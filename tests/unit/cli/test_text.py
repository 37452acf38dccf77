import io
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from kingdom.bus.operations import Pin
from kingdom.bus.stream import OpenTopology, Stream
from kingdom.cli.framework.application import load_application
from kingdom.cli.framework.inputs import attributes, duration, envelopes, payload
from kingdom.errors import MalformedEvent, Misconfigured
from kingdom.text import format_duration, printable
from kingdom.views.camel import to_json_object


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("1.5s", 1.5), ("250ms", 0.25), ("5m", 300), ("5min", 300), ("2h", 7200), ("1d", 86400)],
)
def test_a_duration_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 weeks", "1e3"])
def test_a_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="duration"):
        duration(text)


def test_a_payload_must_be_a_json_object() -> None:
    assert payload('{"a": [1, null]}') == {"a": [1, None]}
    for text in ("[]", "{", "1", ""):
        with pytest.raises(typer.BadParameter, match="not a JSON object"):
            payload(text)


def test_attributes_are_pairs() -> None:
    assert attributes(["a=b", "c=d=e"]) == {"a": "b", "c": "d=e"}
    with pytest.raises(typer.BadParameter, match="'a' is not an attribute"):
        attributes(["a"])


def test_each_line_is_an_event_and_defaults_fill_in_missing_fields() -> None:
    lines = io.StringIO('{"type": "A", "payload": {"n": 1}}\n\n{"stream": "t", "colour": "red"}\n')
    first, second = envelopes(lines, {"type": "B", "stream": "s"})
    assert (first.type, first.stream, first.payload) == ("A", "s", {"n": 1})
    assert (second.type, second.stream, second.attributes) == ("B", "t", {"colour": "red"})


@pytest.mark.parametrize("line", ["no json", "[]", "{}", '{"type": "A", "eventId": "7"}', '{"type": 7}'])
def test_an_invalid_line_of_events_is_reported_by_its_number(line: str) -> None:
    with pytest.raises(MalformedEvent, match="line 2 is not an event"):
        list(envelopes(io.StringIO(f'{{"type": "A"}}\n{line}\n'), {}))


def test_control_characters_become_visible_and_letters_of_all_scripts_stay() -> None:
    assert printable("a\x1b[31m\x00\r\u202eb") == r"a\x1b[31m\x00\r\u202eb"
    assert printable("여왕 ç\nnext") == "여왕 ç\nnext"


def test_machine_output_has_camel_case_names_and_untouched_contents() -> None:
    content: Any = {"snake_case": 1}
    assert to_json_object(Pin(what="x", age_seconds=1.5, detail=content)) == {
        "what": "x",
        "ageSeconds": 1.5,
        "detail": content,
    }


def test_a_duration_is_shown_in_its_largest_unit() -> None:
    assert [format_duration(s) for s in (0.26, 59, 90, 5400, 129600)] == [
        "0.3 s",
        "59.0 s",
        "1.5 min",
        "1.5 h",
        "1.5 d",
    ]


def test_an_operator_without_the_application_may_name_any_stream() -> None:
    topology = OpenTopology(Stream(name="any", ordered=True))
    assert topology.stream("soldier.a.control").name == "soldier.a.control"
    assert topology.stream("soldier.a.control").ordered
    assert topology.names() == ()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import nothing_of_this_name", "cannot be imported: No module named 'nothing_of_this_name'"),
        ("def f():\n    return 1 / 0\n\n\napp = f()", r"ZeroDivisionError: division by zero \(broken_app.py, line 2\)"),
        ("app = 7", "is a int"),
    ],
)
def test_an_application_that_cannot_be_loaded_says_what_is_wrong_with_it(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_app.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        with pytest.raises(Misconfigured, match=sentence):
            load_application("broken_app:app")
    finally:
        sys.modules.pop("broken_app", None)

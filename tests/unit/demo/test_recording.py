import re
from xml.etree import ElementTree as ET

from rich.text import Text

from bench.demo_recording import animated_svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_recording_has_a_frame_for_each_view_all_of_one_size() -> None:
    root = ET.fromstring(animated_svg([Text("one"), Text("two\n" * 5), Text("three")]))  # noqa: S314 - our own text
    frames = root.findall(f"{NAMESPACE}svg")
    assert len(frames) == 3
    assert {frame.get("viewBox") for frame in frames} == {root.get("viewBox")}
    assert ["one" in "".join(frame.itertext()) for frame in frames] == [True, False, False]


def test_a_recording_fetches_nothing_from_elsewhere() -> None:
    drawn = animated_svg([Text("one")])
    assert re.findall(r"https?://[^\"')]*", drawn) == ["http://www.w3.org/2000/svg"]

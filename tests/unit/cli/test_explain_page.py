"""A timeline as a page and as a picture."""

from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from kingdom.court.explain.timeline import Timeline
from kingdom.court.explain.timeline_builder import build_timeline
from kingdom.court.explain.wording import result_of
from kingdom.web.pages.story import page
from kingdom.web.pages.timeline_picture import Scale, picture
from tests.unit.court.explain.pieces import BEGIN, RUN, WORK, after, answered, assignment, begun, event, material

HOSTILE = "</title></script><script>alert(1)</script>\" onload='x' \x1b[2J\u202e <img src=//evil.example/x>"


class Tags(HTMLParser):
    """Collects the tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def story(words: str) -> Timeline:
    log = begun()
    log.add(9, "task.needs_human", "gen-a", task_id="t", question=words)
    log.add(10, "AgentError", words, workId=WORK, error=words)
    log.add(11, "WorkRetried", workId=WORK, workflowId=RUN, reason=words, failures=1)
    answered(log, 3600 * 24)
    log.add(3600 * 24 + 5, "WorkCompleted", workId=WORK, workflowId=RUN)
    given = material(log, assignments=[assignment(ended_at=after(3600 * 24 + 9), reason=words)])
    return build_timeline(replace(given, event=event(payload={"title": words})))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = Tags()
    reader.feed(text)
    return reader.found


def test_hostile_text_is_neither_markup_nor_control_characters() -> None:
    text = page(story(HOSTILE), after(0))
    assert {tag for tag, _ in tags(text)} == {tag for tag, _ in tags(page(story("calm"), after(0)))}
    assert not any(name.startswith("on") for _, attributes in tags(text) for name in attributes)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_outcome_ends_with_exactly_one_punctuation_mark() -> None:
    for words, end in (("Answered.", ": Answered."), ("Hello to you too!", "too!"), ("no money", ": no money.")):
        (strand,) = story(words).strands
        assert result_of(strand).endswith(end)
        assert not result_of(strand).endswith(("..", "!."))


def test_the_page_requests_nothing_from_other_hosts() -> None:
    text = page(story("calm"), after(0))
    assert not [tag for tag, _ in tags(text) if tag in ("script", "link", "img", "iframe", "object", "a")]
    policies = [each["content"] for tag, each in tags(text) if each.get("http-equiv") == "Content-Security-Policy"]
    assert policies
    assert "default-src 'none'" in str(policies[0])
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text


def test_the_picture_is_well_formed_and_has_a_lane_for_king_work_and_people() -> None:
    drawn = ET.fromstring(picture(story(HOSTILE), after(0)))  # noqa: S314 - we have just made it
    lanes = [each.find("title") for each in drawn.iter("text") if each.get("class") == "lane"]
    assert [lane.text for lane in lanes if lane is not None] == ["King", "w1", "people"]
    looks = [each.get("class") for each in drawn.iter("path")]
    assert {"mark crash", "mark retry"} <= set(looks)


def test_a_timeline_without_a_beginning_has_no_picture() -> None:
    nothing = Timeline(
        about="x",
        event=None,
        status="gone",
        begun_at=None,
        ended_at=None,
        seconds=None,
        cost_usd=0.0,
        crashes=0,
        retries=0,
        strands=(),
        moments=(),
    )
    assert picture(nothing, BEGIN) == ""
    assert "<svg" not in page(nothing, BEGIN)


def test_a_long_wait_is_shortened_so_that_seconds_of_work_stay_visible() -> None:
    times = [*(after(second) for second in range(20)), *(after(86400 + second) for second in range(20))]
    scale = Scale(times)
    places = [scale.x(at) for at in times]
    assert places == sorted(places)
    assert len(scale.breaks) == 1
    assert places[19] - places[0] > 0.3 * (places[-1] - places[0])


def test_a_position_is_mapped_back_to_its_time() -> None:
    scale = Scale([after(0), after(10), after(5000)])
    for seconds in (0, 3, 10, 400, 5000):
        assert abs(scale.at(scale.x(after(seconds))) - after(seconds)) < timedelta(milliseconds=1)


def test_a_single_moment_is_drawn_too() -> None:
    scale = Scale([after(0)])
    assert scale.x(after(0)) == scale.x(after(100))

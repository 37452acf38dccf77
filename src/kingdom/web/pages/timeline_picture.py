"""A timeline as SVG: lanes with bars for durations, and marks for moments."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from markupsafe import Markup

from kingdom.court.explain.timeline import Moment, MomentKind, Strand, Timeline
from kingdom.text import format_duration, printable

# All lengths are in units of the picture, which is _WIDTH units wide.
_WIDTH, _LEFT, _RIGHT = 1000.0, 190.0, 20.0
_TOP, _LANE, _BAR = 34.0, 30.0, 14.0
_TICKS = 6
_LABEL_LENGTH_MAX = 26
# The largest share of the width for one pause, so that a night of waiting leaves room for minutes of work. With few
# gaps, a pause can take a larger share.
_PAUSE_SHARE = 0.15
# After this many iterations, the longest pause hardly changes.
_ROUNDS = 60
_MARKS = {
    MomentKind.CHECKPOINT: "M0 -7 L7 0 L0 7 L-7 0 Z",
    MomentKind.CRASH: "M-6 -6 L6 6 M6 -6 L-6 6",
    MomentKind.FAILURE: "M0 -7 L7 6 L-7 6 Z",
    MomentKind.RETRY: "M-6 -6 L6 0 L-6 6 Z",
    MomentKind.PETITION: "M-5 -5 H5 V5 H-5 Z",
    MomentKind.EFFECT: "M-6 0 A6 6 0 1 0 6 0 A6 6 0 1 0 -6 0 Z",
    MomentKind.RESULT: "M-3 -8 H3 V8 H-3 Z",
}


class Scale:
    """Maps times to positions. Long pauses are drawn shorter: `breaks` has the begin, end and seconds of each."""

    def __init__(self, times: Sequence[datetime]) -> None:
        self._times = sorted(set(times))
        pairs = list(zip(self._times, self._times[1:], strict=False))
        gaps = [(later - earlier).total_seconds() for earlier, later in pairs]
        longest = _longest_pause(gaps)
        shown = [min(gap, longest) for gap in gaps]
        unit = (_WIDTH - _LEFT - _RIGHT) / (sum(shown) or 1.0)
        self._places = [_LEFT]
        for gap in shown:
            self._places.append(self._places[-1] + gap * unit)
        self.breaks = [
            (self._places[index], self._places[index + 1], gap)
            for index, gap in enumerate(gaps)
            if gap > longest * 1.01
        ]

    def x(self, at: datetime) -> float:
        """Return the position of a time."""
        index = min(max(bisect_right(self._times, at) - 1, 0), len(self._times) - 1)
        if index + 1 >= len(self._times):
            return self._places[index]
        begin, end = self._times[index], self._times[index + 1]
        share = (at - begin) / (end - begin)
        return self._places[index] + share * (self._places[index + 1] - self._places[index])

    def at(self, x: float) -> datetime:
        """Return the time at a position."""
        index = min(max(bisect_right(self._places, x) - 1, 0), len(self._times) - 1)
        if index + 1 >= len(self._times):
            return self._times[index]
        width = self._places[index + 1] - self._places[index]
        share = (x - self._places[index]) / width if width else 0.0
        return self._times[index] + share * (self._times[index + 1] - self._times[index])


@dataclass(frozen=True, slots=True)
class Bar:
    """A duration. `words` is its tooltip."""

    begin: datetime
    end: datetime
    css_class: str
    words: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row with its bars, and the moments that are marked on it."""

    name: str
    bars: tuple[Bar, ...] = ()
    marks: tuple[Moment, ...] = ()


def picture(timeline: Timeline, now: datetime) -> Markup:
    """Return the picture. A bar that has not ended extends to the end of its assignment, or else to now."""
    if timeline.begun_at is None:
        return Markup("")
    lanes = list(_lanes(timeline, now))
    ends = [at for lane in lanes for bar in lane.bars for at in (bar.begin, bar.end)]
    until = timeline.ended_at or max(now, timeline.begun_at)
    scale = Scale([timeline.begun_at, until, *ends, *(moment.at for moment in timeline.moments)])
    height = _TOP + _LANE * len(lanes) + 10
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" class="timeline" role="img" aria-label="The timeline">',
        *_axis(scale, timeline.begun_at, height),
        *(line for number, lane in enumerate(lanes) for line in _lane(lane, number, scale)),
        *_crashes(timeline, scale, height),
        "</svg>",
    ]
    return Markup("\n".join(parts))  # noqa: S704 - every text in it is escaped


def _longest_pause(gaps: Sequence[float]) -> float:
    """Return the length above which a pause is drawn shorter."""
    if not gaps:
        return 0.0
    share = max(_PAUSE_SHARE, 2 / len(gaps))
    longest = sum(gaps)
    for _ in range(_ROUNDS):
        longest = share * sum(min(gap, longest) for gap in gaps)
    return longest


def _lanes(timeline: Timeline, now: datetime) -> Iterator[Lane]:
    several = len(timeline.strands) > 1
    for strand in timeline.strands:
        end = strand.ended_at or now
        prefix = f"{strand.general or strand.id}: " if several else ""
        own = [moment for moment in timeline.moments if moment.strand == strand.id]
        yield Lane(f"{prefix}King", tuple(_waiting(timeline, strand, now)), _select_moments(own, MomentKind.RESULT))
        for work in strand.works:
            about = [moment for moment in own if moment.work_id == work.id]
            whole = [Bar(work.started_at, work.ended_at or end, "work", work.name)] if work.started_at else []
            queries = [
                Bar(
                    query.sent_at,
                    query.ended_at or end,
                    f"query {query.outcome}",
                    f"query, attempt {query.attempt}, {query.outcome}, ${query.cost_usd:.2f}",
                )
                for query in work.queries
            ]
            marks = _select_moments(about, MomentKind.CHECKPOINT, MomentKind.FAILURE, MomentKind.RETRY)
            yield Lane(f"{prefix}{work.name}", (*whole, *queries), marks)
        if strand.questions:
            bars = [Bar(each.asked_at, each.answered_at or end, "people", each.question) for each in strand.questions]
            yield Lane(f"{prefix}people", tuple(bars))
        if outside := _select_moments(own, MomentKind.PETITION, MomentKind.EFFECT):
            yield Lane(f"{prefix}outside", (), outside)


def _waiting(timeline: Timeline, strand: Strand, now: datetime) -> Iterator[Bar]:
    if timeline.begun_at is None or timeline.event is None:
        return
    if strand.waited_seconds is not None:
        end = timeline.begun_at + timedelta(seconds=strand.waited_seconds)
        yield Bar(timeline.begun_at, end, "waiting", "waited to be admitted")
    elif not strand.begun_at and not strand.works:
        yield Bar(timeline.begun_at, now, "waiting", strand.reason or "waits to be admitted")


def _select_moments(moments: Sequence[Moment], *kinds: MomentKind) -> tuple[Moment, ...]:
    return tuple(moment for moment in moments if moment.kind in kinds)


def _axis(scale: Scale, begun_at: datetime, height: float) -> Iterator[str]:
    for begin, end, seconds in scale.breaks:
        words = safe(f"{format_duration(seconds)}, drawn shorter")
        yield (
            f'<rect class="pause" x="{begin:.1f}" y="{_TOP - 8:.0f}" width="{end - begin:.1f}"'
            f' height="{height - _TOP:.0f}"><title>{words}</title></rect>'
        )
    for number in range(_TICKS + 1):
        x = _LEFT + number * (_WIDTH - _LEFT - _RIGHT) / _TICKS
        label = f"+{format_duration((scale.at(x) - begun_at).total_seconds())}"
        yield f'<line class="tick" x1="{x:.1f}" y1="{_TOP - 8:.0f}" x2="{x:.1f}" y2="{height - 8:.0f}"/>'
        anchor = "end" if number == _TICKS else "middle"
        yield f'<text class="time" x="{x:.1f}" y="16" text-anchor="{anchor}">{safe(label)}</text>'


def _lane(lane: Lane, number: int, scale: Scale) -> Iterator[str]:
    middle = _TOP + _LANE * number + _LANE / 2
    name = lane.name if len(lane.name) <= _LABEL_LENGTH_MAX else f"{lane.name[: _LABEL_LENGTH_MAX - 1]}…"
    label = f"<title>{safe(lane.name)}</title>{safe(name)}"
    yield f'<text class="lane" x="{_LEFT - 12:.0f}" y="{middle + 4:.0f}" text-anchor="end">{label}</text>'
    for bar in lane.bars:
        x = scale.x(bar.begin)
        # Very short durations must be visible too.
        width = max(scale.x(bar.end) - x, 2.0)
        words = safe(f"{bar.words}, {format_duration(max((bar.end - bar.begin).total_seconds(), 0.0))}")
        yield (
            f'<rect class="{safe(bar.css_class)}" x="{x:.1f}" y="{middle - _BAR / 2:.1f}" width="{width:.1f}"'
            f' height="{_BAR:.0f}" rx="3"><title>{words}</title></rect>'
        )
    for moment in lane.marks:
        yield _mark(moment, scale.x(moment.at), middle)


def _crashes(timeline: Timeline, scale: Scale, height: float) -> Iterator[str]:
    for moment in _select_moments(timeline.moments, MomentKind.CRASH):
        x = scale.x(moment.at)
        yield f'<line class="crash" x1="{x:.1f}" y1="{_TOP - 4:.0f}" x2="{x:.1f}" y2="{height - 8:.0f}"/>'
        yield _mark(moment, x, _TOP - 4)


def _mark(moment: Moment, x: float, y: float) -> str:
    words = safe(f"{moment.what}{f': {moment.why}' if moment.why else ''}")
    place = f'transform="translate({x:.1f} {y:.1f})" d="{_MARKS[moment.kind]}"'
    return f'<path class="mark {moment.kind}" {place}><title>{words}</title></path>'


def safe(text: str) -> str:
    """Escape text from outside for a page: no markup and no control characters."""
    return escape(printable(text), quote=True)

"""A timeline as a self-contained HTML page: no script, no external resource, light and dark."""

from collections.abc import Iterator
from datetime import UTC, datetime

from kingdom.cli.explain.svg import picture, safe
from kingdom.cli.explain.view import headline, money, offset, outcome, result_of
from kingdom.cli.framework.output import format_duration
from kingdom.court.explain.timeline import Moment, Timeline

# Text of an event must not make the browser load or run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LEGEND = (
    "Pale bar: a work. Strong bar: a query, red if it failed or was lost. Diamond: checkpoint. Cross: crash."
    " Flat triangle: failure. Pointing triangle: retry. Square: petition. Circle: call outside. Shaded: a pause"
    " that is drawn shorter."
)
_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2330; --soft: #667085; --line: #d9dde5; --work: #d7e3f7;
  --query: #3b76c4; --people: #d99a1c; --waiting: #a9b1c0; --good: #2e8b57; --bad: #c93a3a; --again: #8d4fc2; }
@media (prefers-color-scheme: dark) { :root { --page: #14171d; --ink: #e4e8ef; --soft: #98a2b3; --line: #2d333f;
  --work: #24344d; --query: #6ea3e8; --people: #e0b04c; --waiting: #5b6474; --good: #58b883; --bad: #ea6a6a;
  --again: #b98ae0; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p.sum, .why, .note { color: var(--soft); }
svg { width: 100%; height: auto; margin-top: 1rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.time { fill: var(--soft); }
.tick { stroke: var(--line); }
.pause { fill: var(--line); opacity: .45; }
.work { fill: var(--work); } .waiting { fill: var(--waiting); } .people { fill: var(--people); }
.query { fill: var(--query); } .query.failed, .query.lost { fill: var(--bad); }
.crash { stroke: var(--bad); stroke-dasharray: 3 3; fill: none; }
.mark { fill: var(--ink); stroke: var(--page); stroke-width: 1; }
.mark.checkpoint { fill: var(--good); } .mark.failure { fill: var(--bad); } .mark.retry { fill: var(--again); }
.mark.crash { stroke: var(--bad); stroke-width: 3; stroke-dasharray: none; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.when { white-space: nowrap; color: var(--soft); }
tr.crash td.what, tr.failure td.what { color: var(--bad); } tr.retry td.what { color: var(--again); }
tr.checkpoint td.what, tr.recovery td.what { color: var(--good); } tr.question td.what { color: var(--people); }
tr.result td.what { font-weight: 600; }
"""


def page(timeline: Timeline, now: datetime) -> str:
    """Return a timeline as a page; text from outside is escaped."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{safe(timeline.about)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<h1>{safe(headline(timeline))}</h1>",
            f'<p class="sum">{safe(outcome(timeline, now))}</p>',
            *(f"<p>{safe(result_of(strand))}</p>" for strand in timeline.strands),
            *_drawn(timeline, now),
            *_works(timeline),
            *_moments(timeline),
            *(f'<p class="note">Note: {safe(words)}.</p>' for words in timeline.missing),
            f'<p class="note">Written by kingdom explain at {now.isoformat(timespec="seconds")}.</p>',
            "</body>",
            "</html>",
            "",
        ]
    )


def _drawn(timeline: Timeline, now: datetime) -> Iterator[str]:
    if drawn := picture(timeline, now):
        yield drawn
        yield f'<p class="note">{_LEGEND}</p>'


def _works(timeline: Timeline) -> Iterator[str]:
    works = [work for strand in timeline.strands for work in strand.works]
    if not works:
        return
    yield "<h2>Works</h2><table>"
    yield (
        '<tr><th>work</th><th>status</th><th class="number">took</th><th class="number">in queries</th>'
        '<th class="number">queries</th><th class="number">cost</th></tr>'
    )
    for work in works:
        numbers = (
            format_duration(work.seconds) if work.seconds is not None else "-",
            format_duration(work.busy_seconds),
            str(len(work.queries)),
            money(work.cost_usd),
        )
        cells = "".join(f'<td class="number">{safe(number)}</td>' for number in numbers)
        yield f"<tr><td>{safe(work.name)}</td><td>{safe(work.status or '-')}</td>{cells}</tr>"
    yield "</table>"


def _moments(timeline: Timeline) -> Iterator[str]:
    yield "<h2>What happened</h2><table>"
    yield '<tr><th>at (UTC)</th><th>after</th><th>who</th><th>what</th><th class="number">took</th>'
    yield '<th class="number">cost</th></tr>'
    yield from (_moment(timeline, moment) for moment in timeline.moments)
    yield "</table>"


def _moment(timeline: Timeline, moment: Moment) -> str:
    why = f'<div class="why">{safe(moment.why)}</div>' if moment.why else ""
    took = format_duration(moment.seconds) if moment.seconds is not None else ""
    return (
        f'<tr class="{moment.kind}"><td class="when">{moment.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}</td>'
        f'<td class="when">{safe(offset(timeline, moment))}</td><td>{safe(moment.who)}</td>'
        f'<td class="what">{safe(moment.what)}{why}</td><td class="number">{safe(took)}</td>'
        f'<td class="number">{safe(money(moment.cost_usd or None))}</td></tr>'
    )

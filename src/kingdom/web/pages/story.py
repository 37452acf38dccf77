"""The story of a run: one template for the run's page and for the page that `kingdom explain --html` exports."""

from datetime import datetime
from typing import Any

from markupsafe import Markup

from kingdom.court.explain import wording
from kingdom.court.explain.timeline import Timeline
from kingdom.text import format_duration
from kingdom.web.pages.assets import read_asset
from kingdom.web.pages.frame import render
from kingdom.web.pages.timeline_picture import picture

# Text of an event must not make the browser load or run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(timeline: Timeline, now: datetime) -> str:
    """Return a timeline as a self-contained page: no script, no external resource, light and dark."""
    style = Markup(read_asset("kingdom.css")[0].decode())  # noqa: S704 - a file of ours
    return render("explain.html", policy=_POLICY, style=style, **story_values(timeline, now))


def story_values(timeline: Timeline, now: datetime) -> dict[str, Any]:
    """Return what the template of a story shows."""
    return {
        "timeline": timeline,
        "now": now,
        "picture": picture(timeline, now),
        "works": [work for strand in timeline.strands for work in strand.works],
        "wording": wording,
        "format_duration": format_duration,
    }

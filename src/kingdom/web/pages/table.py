"""The table of pages: every address for browsers, its right and its function."""

from collections.abc import Awaitable, Callable
from typing import Any

from kingdom.access.rights import Right
from kingdom.web.api.bus import LettersQuery, StreamQuery
from kingdom.web.api.court import AssignmentsQuery, CostsQuery, EventsQuery, FollowupsQuery
from kingdom.web.api.transcripts import CheckpointDiffQuery, DiffQuery, TranscriptQuery
from kingdom.web.pages import (
    bus,
    costs,
    diffs,
    events,
    generals,
    hosts,
    inbox,
    overview,
    run,
    runs,
    sign_in,
    transcript,
)
from kingdom.web.pages.assets import ASSETS
from kingdom.web.route import ApiCall, ApiRoute, PageQuery


def _page(path: str, run: Callable[[ApiCall], Awaitable[Any]], query: Any = None) -> ApiRoute:
    return ApiRoute(method="GET", path=path, right=Right.LOOK, run=run, result=None, query=query, media="text/html")


PAGES: tuple[ApiRoute, ...] = (
    _page("/", overview.show_overview),
    _page("/inbox", inbox.show_inbox, PageQuery),
    _page("/runs", runs.show_runs, runs.RunsPageQuery),
    _page("/followups", runs.show_followups, FollowupsQuery),
    _page("/runs/{id}", run.show_run, run.RunPageQuery),
    _page("/runs/{id}/timeline", run.show_timeline),
    _page("/runs/{id}/followups", run.show_followups),
    _page("/runs/{id}/story", run.show_story),
    _page("/runs/{id}/transcript", transcript.show_transcript, TranscriptQuery),
    _page("/runs/{id}/transcript.txt", transcript.download_transcript, TranscriptQuery),
    _page("/runs/{id}/reports", transcript.show_reports),
    _page("/runs/{id}/diff", diffs.show_diff, DiffQuery),
    _page("/runs/{id}/changes.diff", diffs.download_diff, DiffQuery),
    _page("/runs/{id}/checkpoints/{checkpoint}/diff", diffs.show_checkpoint_diff, CheckpointDiffQuery),
    _page("/events", events.show_events, EventsQuery),
    _page("/events/{id}", events.show_event),
    _page("/events/{id}/why", events.show_why),
    _page("/events/{id}/story", run.show_story),
    _page("/assignments", events.show_assignments, AssignmentsQuery),
    _page("/assignments/{id}", events.show_assignment),
    _page("/assignments/{id}/story", run.show_story),
    _page("/bus", bus.show_bus, LettersQuery),
    _page("/bus/pins", bus.show_pins),
    _page("/bus/dead-letters/{id}", bus.show_dead_letter, StreamQuery),
    _page("/generals", generals.show_generals),
    _page("/generals/{name}", generals.show_general),
    _page("/costs", costs.show_costs, CostsQuery),
    _page("/hosts", hosts.show_hosts, PageQuery),
)
OPEN_PAGES = {"/sign-in": sign_in.show_sign_in, **ASSETS}

"""The table of pages: every address for browsers, its right and its function."""

from collections.abc import Awaitable, Callable
from typing import Any

from kingdom.access.rights import Right
from kingdom.web.api.transcripts import CheckpointDiffQuery, DiffQuery, TranscriptQuery
from kingdom.web.pages import diffs, inbox, overview, run, runs, sign_in, transcript
from kingdom.web.pages.assets import ASSETS
from kingdom.web.route import ApiCall, ApiRoute, PageQuery


def _page(path: str, run: Callable[[ApiCall], Awaitable[Any]], query: Any = None) -> ApiRoute:
    return ApiRoute(method="GET", path=path, right=Right.LOOK, run=run, result=None, query=query, media="text/html")


PAGES: tuple[ApiRoute, ...] = (
    _page("/", overview.show_overview),
    _page("/inbox", inbox.show_inbox, PageQuery),
    _page("/runs", runs.show_runs, runs.RunsPageQuery),
    _page("/runs/{id}", run.show_run, run.RunPageQuery),
    _page("/runs/{id}/timeline", run.show_timeline),
    _page("/runs/{id}/story", run.show_story),
    _page("/runs/{id}/transcript", transcript.show_transcript, TranscriptQuery),
    _page("/runs/{id}/transcript.txt", transcript.download_transcript, TranscriptQuery),
    _page("/runs/{id}/reports", transcript.show_reports),
    _page("/runs/{id}/diff", diffs.show_diff, DiffQuery),
    _page("/runs/{id}/changes.diff", diffs.download_diff, DiffQuery),
    _page("/runs/{id}/checkpoints/{checkpoint}/diff", diffs.show_checkpoint_diff, CheckpointDiffQuery),
)
OPEN_PAGES = {"/sign-in": sign_in.show_sign_in, **ASSETS}

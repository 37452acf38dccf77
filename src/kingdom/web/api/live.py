"""The live stream of the log."""

from functools import partial

import msgspec
from aiohttp import web

from kingdom.web.access import ACCESS
from kingdom.web.route import ApiCall
from kingdom.web.stream import STREAM, StreamSession


class FollowQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the stream begins: `now`, `start`, or after a cursor; and the types of the entries, by default all."""

    after: str = "now"
    kinds: tuple[str, ...] = ()


async def follow_log(call: ApiCall) -> web.StreamResponse:
    """Follow the log as server-sent events, without gaps or duplicates; `Last-Event-ID` resumes after a cut."""
    request, visitor = call.request, call.visitor
    session = StreamSession(
        id=visitor.credential_id,
        is_valid=partial(request.app[ACCESS].is_still_valid, visitor),
        expires_at=visitor.expires_at,
    )
    return await request.app[STREAM].handle(request, session)

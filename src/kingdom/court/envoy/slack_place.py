"""Slack as a place: threads, questions with buttons, and messages found again by their metadata."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from kingdom.bus.effects.effect import (
    Absent,
    Acked,
    CallResult,
    Idempotency,
    Present,
    ReconcileResult,
    Target,
    Throttled,
    Unclear,
)
from kingdom.bus.effects.http_result import retry_after
from kingdom.court.envoy.place import Mark, Place, Post
from kingdom.court.envoy.records import Awaited
from kingdom.court.envoy.settings import SlackSettings
from kingdom.court.envoy.slack_words import METADATA_TYPE, blocks_of, ended_blocks, escaped, naming_people, refused
from kingdom.errors import Misconfigured

_EMOJI = {
    Mark.SEEN: "eyes",
    Mark.NEEDS_PERSON: "raising_hand",
    Mark.DONE: "white_check_mark",
    Mark.FAILED: "x",
}
_UNREACHABLE_WAIT = timedelta(seconds=15)
# Our clock and that of Slack may differ by so much.
_CLOCKS_DIFFER = timedelta(minutes=5)
_PAGE = 200
# Slack would fetch addresses that others wrote, and so carry away what is in them.
_NOTHING_FETCHED: dict[str, Any] = {"unfurl_links": False, "unfurl_media": False}
_WRONG_TOKEN = frozenset({"invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive"})
_Page = Callable[..., Awaitable[AsyncSlackResponse]]


class SlackPlace(Place):
    """Posts by the Web API; one that hides nothing it ever took, so time tells what was not sent."""

    def __init__(self, settings: SlackSettings, *, page: int = _PAGE) -> None:
        self.target = Target(name="slack", idempotency=Idempotency.TIME, settles_after=settings.settles_after)
        self._settings = settings
        self._page = page
        self._session: aiohttp.ClientSession | None = None
        self._web: AsyncWebClient | None = None
        self._channels: dict[str, str] = {}

    @property
    def web(self) -> AsyncWebClient:
        """Return the client of the Web API."""
        if self._web is None:
            raise RuntimeError("open the place before anything is posted")
        return self._web

    async def open(self) -> None:
        """Make a client ready, and refuse a token that Slack refuses."""
        self._session = aiohttp.ClientSession()
        self._web = AsyncWebClient(
            token=self._settings.bot_token,
            base_url=self._settings.base_url,
            timeout=math.ceil(self._settings.call_seconds),
            session=self._session,
            # A post that may have arrived must not be repeated by anybody but the ledger.
            retry_handlers=[],
        )
        try:
            await self._web.auth_test()
        except SlackApiError as error:
            if _error(error) in _WRONG_TOKEN:
                await self.close()
                raise Misconfigured(
                    f"Slack does not take the bot token ({_error(error)}): see slack.bot_token"
                ) from error
        except (aiohttp.ClientError, TimeoutError):
            # It will be reachable later.
            return

    async def close(self) -> None:
        """See the port."""
        if self._session:
            await self._session.close()

    async def post(self, post: Post) -> CallResult:
        """See the port."""
        try:
            sent = await self._send(post)
        except SlackApiError as error:
            return refused(_error(error), _status(error), _wait(error), post.attempt)
        except aiohttp.ClientConnectorError as error:
            # Nobody listened, so nothing was said.
            return Throttled(_UNREACHABLE_WAIT, f"Slack cannot be reached: {error}")
        return Acked({"channel": sent["channel"], "ts": sent["ts"]})

    async def find(self, post: Post) -> ReconcileResult:
        """See the port."""
        try:
            channel = post.thread.channel if post.thread else await self._channel_id(post.channel)
            async for message in self._said(post, channel):
                metadata = message.get("metadata") or {}
                payload = metadata.get("event_payload") or {}
                if metadata.get("event_type") == METADATA_TYPE and payload.get("key") == post.key:
                    return Present({"channel": channel, "ts": message["ts"]})
        except SlackApiError as error:
            return Unclear(f"Slack does not show what was said: {_error(error) or _status(error)}")
        return Absent()

    async def end_question(self, question: Awaited, ending: str) -> None:
        """See the port."""
        shown = naming_people(escaped(ending))
        await self.web.chat_update(
            channel=question.channel,
            ts=question.message_ts,
            text=f"{escaped(question.question)}\n{shown}",
            blocks=ended_blocks(question.question, shown),
            **_NOTHING_FETCHED,
        )

    async def mark(self, channel: str, ts: str, mark: Mark) -> None:
        """See the port."""
        changes = [(self.web.reactions_add, _EMOJI[mark], "already_reacted")]
        if mark is not Mark.NEEDS_PERSON:
            changes.append((self.web.reactions_remove, _EMOJI[Mark.NEEDS_PERSON], "no_reaction"))
        for change, name, is_so_already in changes:
            try:
                await change(channel=channel, timestamp=ts, name=name)
            except SlackApiError as error:
                if _error(error) != is_so_already:
                    raise

    async def whisper(self, channel: str, thread_ts: str, person: str, text: str) -> None:
        """Tell one person something that concerns nobody else."""
        await self.web.chat_postEphemeral(
            channel=channel,
            user=person,
            text=naming_people(escaped(text)),
            thread_ts=thread_ts or None,
            **_NOTHING_FETCHED,
        )

    async def _send(self, post: Post) -> AsyncSlackResponse:
        message, thread = post.message, post.thread
        said: dict[str, Any] = {
            "channel": thread.channel if thread else post.channel,
            "text": escaped(message.content),
            "blocks": blocks_of(message),
            "metadata": {
                "event_type": METADATA_TYPE,
                "event_payload": {"msg_id": message.id, "identifier": post.identifier, "key": post.key},
            },
            **_NOTHING_FETCHED,
        }
        if thread is None:
            return await self.web.chat_postMessage(**said)
        try:
            return await self.web.chat_postMessage(**said, thread_ts=thread.thread_ts)
        except SlackApiError as error:
            if _error(error) != "thread_not_found":
                raise
        # Somebody deleted where it began: better on its own than unsaid.
        return await self.web.chat_postMessage(**said)

    async def _said(self, post: Post, channel: str) -> AsyncIterator[dict[str, Any]]:
        """Yield everything that was said where a message may be, since shortly before it was written."""
        oldest = f"{(post.message.created_at - _CLOCKS_DIFFER).timestamp():.6f}"
        shown: dict[str, Any] = {
            "channel": channel,
            "oldest": oldest,
            "include_all_metadata": True,
            "limit": self._page,
        }
        if post.thread:
            try:
                async for message in _pages(self.web.conversations_replies, **shown, ts=post.thread.thread_ts):
                    yield message
            except SlackApiError as error:
                if _error(error) != "thread_not_found":
                    raise
        async for message in _pages(self.web.conversations_history, **shown):
            yield message

    async def _channel_id(self, named: str) -> str:
        """Return the id of a channel by its name or id, or of the conversation with a person."""
        if named not in self._channels:
            self._channels[named] = await self._look_up(named.removeprefix("#"))
        return self._channels[named]

    async def _look_up(self, name: str) -> str:
        if is_person(name):
            opened = await self.web.conversations_open(users=name)
            return str(opened["channel"]["id"])
        kinds = "public_channel,private_channel"
        async for channel in _pages(self.web.conversations_list, key="channels", types=kinds, limit=self._page):
            if name in (channel["name"], channel["id"]):
                return str(channel["id"])
        return name


def is_person(channel: str) -> bool:
    """Tell whether a channel is the id of a person, who is then told alone."""
    return channel[:1] in ("U", "W") and channel.isalnum() and channel.isupper()


async def _pages(ask: _Page, *, key: str = "messages", **about: Any) -> AsyncIterator[dict[str, Any]]:
    cursor = ""
    while True:
        page = await ask(**about, **({"cursor": cursor} if cursor else {}))
        for each in page[key]:
            yield each
        cursor = (page.get("response_metadata") or {}).get("next_cursor") or ""
        if not cursor:
            return


def _error(error: SlackApiError) -> str:
    return str(error.response.get("error") or "") if isinstance(error.response, AsyncSlackResponse) else ""


def _status(error: SlackApiError) -> int:
    return error.response.status_code if isinstance(error.response, AsyncSlackResponse) else 0


def _wait(error: SlackApiError) -> timedelta | None:
    return retry_after(error.response.headers) if isinstance(error.response, AsyncSlackResponse) else None

"""The messenger for Slack: threads, questions with buttons, and messages found by their metadata."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
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
from kingdom.court.envoy.messenger import Messenger, OutgoingMessage, ProgressMark
from kingdom.court.envoy.records import ShownQuestion
from kingdom.court.envoy.settings import SlackSettings
from kingdom.court.envoy.slack_format import (
    METADATA_TYPE,
    classify_error,
    ended_question_blocks,
    escape_text,
    mention_people,
    question_blocks,
)
from kingdom.errors import Misconfigured, Transient, describe_error

_EMOJI = {
    ProgressMark.SEEN: "eyes",
    ProgressMark.NEEDS_PERSON: "raising_hand",
    ProgressMark.DONE: "white_check_mark",
    ProgressMark.FAILED: "x",
}
_UNREACHABLE_WAIT = timedelta(seconds=15)
# How much our clock and Slack's clock may differ.
_CLOCK_SKEW_MAX = timedelta(minutes=5)
_PAGE = 200
# Do not let Slack preview links: it would fetch URLs that strangers wrote, which could leak data in the URLs.
_NOTHING_FETCHED: dict[str, Any] = {"unfurl_links": False, "unfurl_media": False}
_WRONG_TOKEN = frozenset({"invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive"})
_Page = Callable[..., Awaitable[AsyncSlackResponse]]


class SlackMessenger(Messenger):
    """Posts with the Web API. Slack shows a message within a known time. If it does not, the message was not sent."""

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
            raise RuntimeError("call open() before posting")
        return self._web

    async def open(self) -> None:
        """Create the client, and raise Misconfigured if Slack rejects the token."""
        self._session = aiohttp.ClientSession()
        self._web = AsyncWebClient(
            token=self._settings.bot_token,
            base_url=self._settings.base_url,
            timeout=math.ceil(self._settings.call_seconds),
            session=self._session,
            # The client must not retry, because a failed post may have arrived. The ledger decides about retries.
            retry_handlers=[],
        )
        try:
            await self._web.auth_test()
        except SlackApiError as error:
            if _error(error) in _WRONG_TOKEN:
                await self.close()
                raise Misconfigured(f"Slack rejects the bot token ({_error(error)}): check slack.bot_token") from error
        except (aiohttp.ClientError, TimeoutError):
            # Slack may be reachable later.
            return

    async def close(self) -> None:
        """See `Messenger.close`."""
        if self._session:
            await self._session.close()

    async def post(self, post: OutgoingMessage) -> CallResult:
        """See `Messenger.post`."""
        try:
            sent = await self._send(post)
        except SlackApiError as error:
            return classify_error(_error(error), _status(error), _wait(error), post.attempt)
        except aiohttp.ClientConnectorError as error:
            # There was no connection, so nothing was sent.
            return Throttled(_UNREACHABLE_WAIT, f"cannot connect to Slack: {error}")
        return Acked({"channel": sent["channel"], "ts": sent["ts"]})

    async def find(self, post: OutgoingMessage) -> ReconcileResult:
        """See `Messenger.find`."""
        try:
            channel = post.thread.channel if post.thread else await self._channel_id(post.channel)
            async for message in self._posted_messages(post, channel):
                metadata = message.get("metadata") or {}
                payload = metadata.get("event_payload") or {}
                if metadata.get("event_type") == METADATA_TYPE and payload.get("key") == post.key:
                    return Present({"channel": channel, "ts": message["ts"]})
        except SlackApiError as error:
            return Unclear(f"cannot search the messages in Slack: {_error(error) or _status(error)}")
        return Absent()

    async def end_question(self, question: ShownQuestion, ending: str) -> None:
        """See `Messenger.end_question`."""
        shown = mention_people(escape_text(ending))
        with _failures_as_transient():
            await self.web.chat_update(
                channel=question.channel,
                ts=question.message_ts,
                text=f"{escape_text(question.question)}\n{shown}",
                blocks=ended_question_blocks(question.question, shown),
                **_NOTHING_FETCHED,
            )

    async def mark(self, channel: str, ts: str, mark: ProgressMark) -> None:
        """See `Messenger.mark`."""
        changes = [(self.web.reactions_add, _EMOJI[mark], "already_reacted")]
        if mark is not ProgressMark.NEEDS_PERSON:
            changes.append((self.web.reactions_remove, _EMOJI[ProgressMark.NEEDS_PERSON], "no_reaction"))
        for change, name, harmless_error in changes:
            with _failures_as_transient(harmless_error):
                await change(channel=channel, timestamp=ts, name=name)

    async def whisper(self, channel: str, thread_ts: str, person: str, text: str) -> None:
        """Send a message that only one person sees."""
        with _failures_as_transient():
            await self.web.chat_postEphemeral(
                channel=channel,
                user=person,
                text=mention_people(escape_text(text)),
                thread_ts=thread_ts or None,
                **_NOTHING_FETCHED,
            )

    async def _send(self, post: OutgoingMessage) -> AsyncSlackResponse:
        message, thread = post.message, post.thread
        chat_message: dict[str, Any] = {
            "channel": thread.channel if thread else post.channel,
            "text": escape_text(message.content),
            "blocks": question_blocks(message, listens=bool(self._settings.app_token)),
            "metadata": {
                "event_type": METADATA_TYPE,
                "event_payload": {"msg_id": message.id, "identifier": post.identifier, "key": post.key},
            },
            **_NOTHING_FETCHED,
        }
        if thread is None:
            return await self.web.chat_postMessage(**chat_message)
        try:
            return await self.web.chat_postMessage(**chat_message, thread_ts=thread.thread_ts)
        except SlackApiError as error:
            if _error(error) != "thread_not_found":
                raise
        # The first message of the thread was deleted, so post outside a thread.
        return await self.web.chat_postMessage(**chat_message)

    async def _posted_messages(self, post: OutgoingMessage, channel: str) -> AsyncIterator[dict[str, Any]]:
        """Yield all messages of the thread and the channel since shortly before the outgoing message was created."""
        oldest = f"{(post.message.created_at - _CLOCK_SKEW_MAX).timestamp():.6f}"
        query: dict[str, Any] = {
            "channel": channel,
            "oldest": oldest,
            "include_all_metadata": True,
            "limit": self._page,
        }
        if post.thread:
            try:
                async for message in _pages(self.web.conversations_replies, **query, ts=post.thread.thread_ts):
                    yield message
            except SlackApiError as error:
                if _error(error) != "thread_not_found":
                    raise
        async for message in _pages(self.web.conversations_history, **query):
            yield message

    async def _channel_id(self, named: str) -> str:
        """Return the id of a channel by its name or id, or the id of the conversation with a person."""
        if named not in self._channels:
            self._channels[named] = await self._look_up(named.removeprefix("#"))
        return self._channels[named]

    async def _look_up(self, name: str) -> str:
        if is_person_id(name):
            opened = await self.web.conversations_open(users=name)
            return str(opened["channel"]["id"])
        kinds = "public_channel,private_channel"
        async for channel in _pages(self.web.conversations_list, key="channels", types=kinds, limit=self._page):
            if name in (channel["name"], channel["id"]):
                return str(channel["id"])
        return name


def is_person_id(channel: str) -> bool:
    """Return whether a channel is a person's id, for a direct message."""
    return channel[:1] in ("U", "W") and channel.isalnum() and channel.isupper()


async def _pages(method: _Page, *, key: str = "messages", **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield the items on all pages that a method of the Web API returns."""
    cursor = ""
    while True:
        page = await method(**query, **({"cursor": cursor} if cursor else {}))
        for each in page[key]:
            yield each
        cursor = (page.get("response_metadata") or {}).get("next_cursor") or ""
        if not cursor:
            return


@contextmanager
def _failures_as_transient(harmless_error: str = "") -> Iterator[None]:
    """Raise Transient if Slack refuses a call or cannot be reached. One error of Slack may be harmless."""
    try:
        yield
    except SlackApiError as error:
        name = _error(error)
        if not name or name != harmless_error:
            raise Transient(f"Slack refused it: {name or f'HTTP {_status(error)}'}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Transient(f"Slack cannot be reached: {describe_error(error)}") from error


def _error(error: SlackApiError) -> str:
    return str(error.response.get("error") or "") if isinstance(error.response, AsyncSlackResponse) else ""


def _status(error: SlackApiError) -> int:
    return error.response.status_code if isinstance(error.response, AsyncSlackResponse) else 0


def _wait(error: SlackApiError) -> timedelta | None:
    return retry_after(error.response.headers) if isinstance(error.response, AsyncSlackResponse) else None

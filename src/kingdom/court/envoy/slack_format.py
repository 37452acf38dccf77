"""Format messages for Slack, and interpret Slack's errors. This module does no I/O."""

import html
import re
from datetime import timedelta
from typing import Any

import msgspec

from kingdom.bus.effects.effect import CallResult, Rejected, Throttled, Unknown
from kingdom.court.documents import Message, MessageType

METADATA_TYPE = "kingdom_message"
ANSWER_ACTION = re.compile(r"^kingdom_answer_")
# Lengths in characters, below the limits of Slack.
_TEXT_MAX = 30_000
_ESCAPED_MAX = 36_000
_SECTION_MAX = 2_900
_BUTTONS_MAX = 25
_BUTTON_TEXT_MAX = 75
_VALUE_MAX = 2_000
_PERSON = re.compile(r"\b[UW](?=[A-Z]*[0-9])[A-Z0-9]{6,}\b")
# The beginning of an entity at the end of a text.
_PARTIAL_ENTITY = re.compile(r"&[a-z]{0,3}\Z")
_MENTION = re.compile(r"^(?:\s*<@[UW][A-Z0-9]+(?:\|[^>]*)?>)+\s*")
# The wait at a rate limit, if Slack does not say how long.
_WAIT = timedelta(seconds=30)
# After this many attempts, an error that is in neither table below counts as permanent.
_ATTEMPTS_MAX = 3

# Slack may have posted the message although it reports an error.
_UNCLEAR = frozenset({"fatal_error", "internal_error", "request_timeout", "service_unavailable", "accesslimited"})
# Errors that a person must fix first, with what to do.
_PERMANENT = {
    "channel_not_found": "there is no such channel, or it is private and the app is not in it: invite the app",
    "not_in_channel": "the app is not in the channel: invite it",
    "is_archived": "the channel is archived",
    "restricted_action": "a workspace setting forbids the app to post there",
    "restricted_action_read_only_channel": "only some members may post in the channel",
    "user_not_found": "there is no such person",
    "cannot_dm_bot": "the person is a bot",
    "user_disabled": "the person has left",
    "msg_too_long": "the message is too long",
    "no_text": "the message is empty",
    "invalid_blocks": "Slack rejects its blocks",
    "missing_scope": "the app lacks a permission: see the scopes in the documentation",
    "not_authed": "the bot token is missing",
    "invalid_auth": "the bot token is wrong",
    "token_revoked": "the bot token was revoked",
    "token_expired": "the bot token has expired",
    "account_inactive": "the account of the bot was removed",
    "not_allowed_token_type": "the token has the wrong kind: a bot token begins with xoxb-",
}


class ButtonChoice(msgspec.Struct, frozen=True, kw_only=True, rename={"question_id": "task_id"}):
    """The value of a button: the question, when it was asked, and the answer."""

    question_id: str
    asked_at: str
    choice: str


def question_id_of(message: Message) -> str:
    """Return the id of a message's question: the petition that it is about, or else its assignment."""
    return str(message.context.get("ask_id") or message.context.get("task_id") or "")


def escape_text(text: str) -> str:
    """Return a text that Slack shows literally, without mentions and links."""
    shortened = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
    escaped = html.escape(shortened, quote=False)
    # Escaping may make a text too long. The cut does not split an entity.
    return escaped if len(escaped) <= _ESCAPED_MAX else f"{_PARTIAL_ENTITY.sub('', escaped[:_ESCAPED_MAX])}…"


def plain_text(text: str) -> str:
    """Return the text of a person's message without the mentions at its beginning."""
    return html.unescape(_MENTION.sub("", text)).strip()


def mention_people(text: str) -> str:
    """Return a text with user ids turned into mentions."""
    return _PERSON.sub(lambda found: f"<@{found[0]}>", text)


def question_blocks(message: Message, *, listens: bool) -> list[dict[str, Any]] | None:
    """Return the blocks of a question. Other messages have no blocks.

    Each choice has a button, unless the Envoy does not listen to Slack.
    """
    if message.type is not MessageType.HUMAN_INPUT_REQUEST:
        return None
    buttons = _buttons(message) if listens else []
    return [*_sections(message.content), *buttons, _context_block(_how_to_answer(message, listens=listens))]


def ended_question_blocks(question: str, ending: str) -> list[dict[str, Any]]:
    """Return the blocks of a closed question: no buttons, and how it ended."""
    return [*_sections(question), _context_block(ending)]


def read_choice(value: str) -> ButtonChoice | None:
    """Return the choice in a button's value, or None if the button is not ours."""
    try:
        return msgspec.json.decode(value, type=ButtonChoice)
    except msgspec.MsgspecError:
        return None


def classify_error(error: str, status: int, retry_after: timedelta | None, attempt: int) -> CallResult:
    """Return what an error of Slack means for the message."""
    reason = f"Slack refused the message: {error or f'HTTP {status}'}"
    if error == "ratelimited" or status == 429:  # noqa: PLR2004 - an HTTP status
        return Throttled(retry_after or _WAIT, reason)
    if error in _UNCLEAR or status >= 500 or not error:  # noqa: PLR2004 - an HTTP status class
        return Unknown(reason)
    if error in _PERMANENT:
        return Rejected(f"{reason}: {_PERMANENT[error]}")
    return Rejected(reason) if attempt >= _ATTEMPTS_MAX else Throttled(None, reason)


def _sections(text: str) -> list[dict[str, Any]]:
    words = text[:_TEXT_MAX]
    parts = [words[at : at + _SECTION_MAX] for at in range(0, len(words), _SECTION_MAX)] or [" "]
    # plain_text needs no escaping, which can make a text five times longer.
    return [{"type": "section", "text": {"type": "plain_text", "text": part, "emoji": False}} for part in parts]


def _is_cut(message: Message) -> bool:
    return len(message.content) > _TEXT_MAX


def _buttons(message: Message) -> list[dict[str, Any]]:
    if _is_cut(message):
        # A person must see the complete text before clicking.
        return []
    question_id, asked_at = question_id_of(message), str(message.context.get("asked_at") or "")
    elements: list[dict[str, Any]] = []
    for number, choice in enumerate(message.context.get("choices") or ()):
        text = str(choice)
        value = msgspec.json.encode(ButtonChoice(question_id=question_id, asked_at=asked_at, choice=text)).decode()
        if text.strip() and len(value) <= _VALUE_MAX and len(elements) < _BUTTONS_MAX:
            label = text if len(text) <= _BUTTON_TEXT_MAX else f"{text[: _BUTTON_TEXT_MAX - 1]}…"
            elements.append(
                {
                    "type": "button",
                    "action_id": f"kingdom_answer_{number}",
                    "value": value,
                    "text": {"type": "plain_text", "text": label, "emoji": False},
                }
            )
    return [{"type": "actions", "elements": elements}] if elements else []


def _how_to_answer(message: Message, *, listens: bool) -> str:
    name, choices = question_id_of(message), message.context.get("choices")
    ways = "Click, or reply in this thread." if choices else "Reply in this thread."
    if _is_cut(message):
        shown = f"kingdom petition show {name}" if message.context.get("ask_id") else "kingdom inbox"
        ways = f"The text is cut. `{shown}` shows all of it, `kingdom answer {name} TEXT` answers it."
    elif not listens:
        ways = f"`kingdom answer {name} TEXT` answers it."
        if choices:
            ways = f"Choices: {escape_text(', '.join(map(str, choices)))}. {ways}"
    elif message.context.get("ask_id"):
        # A reply in the thread would answer the question of the assignment.
        ways = "Click."
    due_at = str(message.context.get("due_at") or "")
    return f"{ways} Deadline: {escape_text(due_at)}." if due_at else ways


def _context_block(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text[:_SECTION_MAX]}]}

"""How something is said in Slack, and what Slack's own words mean. Pure."""

import html
import re
from datetime import timedelta
from typing import Any

import msgspec

from kingdom.bus.effects.effect import CallResult, Rejected, Throttled, Unknown
from kingdom.court.documents import Message, MessageType

METADATA_TYPE = "kingdom_message"
ANSWER_ACTION = re.compile(r"^kingdom_answer_")
_TEXT_MAX = 30_000
_ESCAPED_MAX = 36_000
_SECTION_MAX = 2_900
_BUTTONS_MAX = 25
_BUTTON_TEXT_MAX = 75
_VALUE_MAX = 2_000
_PERSON = re.compile(r"\b[UW](?=[A-Z]*[0-9])[A-Z0-9]{6,}\b")
_MENTION = re.compile(r"^(?:\s*<@[UW][A-Z0-9]+(?:\|[^>]*)?>)+\s*")
_WAIT = timedelta(seconds=30)
_ATTEMPTS_MAX = 3

# Slack may have done it and says only that something broke.
_UNCLEAR = frozenset({"fatal_error", "internal_error", "request_timeout", "service_unavailable", "accesslimited"})
# A person must change something first; the words say what.
_HOPELESS = {
    "channel_not_found": "there is no such channel, or it is private and the app is not in it: invite the app",
    "not_in_channel": "the app is not in the channel: invite it",
    "is_archived": "the channel is archived",
    "restricted_action": "a setting of the workspace does not let the app post there",
    "restricted_action_read_only_channel": "only some may post in the channel",
    "user_not_found": "there is no such person",
    "cannot_dm_bot": "the person is a bot",
    "user_disabled": "the person has left",
    "msg_too_long": "the message is too long",
    "no_text": "the message is empty",
    "invalid_blocks": "Slack does not take its blocks",
    "missing_scope": "the app lacks a permission: see the scopes in the documentation",
    "not_authed": "the bot token is missing",
    "invalid_auth": "the bot token is wrong",
    "token_revoked": "the bot token was revoked",
    "token_expired": "the bot token is too old",
    "account_inactive": "the account of the bot is gone",
    "not_allowed_token_type": "the token is of another kind: the bot token begins with xoxb-",
}


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a button says when it is clicked: which question of which assignment or petition, and the answer."""

    task_id: str
    asked_at: str
    choice: str


def ask_of(message: Message) -> str:
    """Return the question that a message asks: that of its assignment, unless it names another."""
    return str(message.context.get("ask_id") or message.context.get("task_id") or "")


def escaped(text: str) -> str:
    """Return a text of anybody as plain words, so that it can call nobody and link nowhere."""
    shortened = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
    said = html.escape(shortened, quote=False)
    # Escaping may lengthen a text beyond what Slack takes; an entity is not cut in two.
    return said if len(said) <= _ESCAPED_MAX else f"{said[:_ESCAPED_MAX].rpartition('&')[0]}…"


def plain(text: str) -> str:
    """Return what a person wrote, without the name of the app in front."""
    return html.unescape(_MENTION.sub("", text)).strip()


def naming_people(text: str) -> str:
    """Return our own words with the ids of people shown as their names."""
    return _PERSON.sub(lambda found: f"<@{found[0]}>", text)


def blocks_of(message: Message) -> list[dict[str, Any]] | None:
    """Return a question with a button for each choice that fits on one; other messages need no blocks."""
    if message.type is not MessageType.HUMAN_INPUT_REQUEST:
        return None
    return [*_sections(message.content), *_buttons(message), _small(_how_to_answer(message))]


def ended_blocks(question: str, ending: str) -> list[dict[str, Any]]:
    """Return a question without its buttons, and how it ended."""
    return [*_sections(question), _small(ending)]


def read_choice(value: str) -> Choice | None:
    """Return what a button of ours says; None where it is of somebody else."""
    try:
        return msgspec.json.decode(value, type=Choice)
    except msgspec.MsgspecError:
        return None


def refused(error: str, status: int, retry_after: timedelta | None, attempt: int) -> CallResult:
    """Return what a refusal of Slack means for the message that was refused."""
    said = f"Slack refused the message: {error or f'HTTP {status}'}"
    if error == "ratelimited" or status == 429:  # noqa: PLR2004 - the status of HTTP itself
        return Throttled(retry_after or _WAIT, said)
    if error in _UNCLEAR or status >= 500 or not error:  # noqa: PLR2004 - the classes of HTTP itself
        return Unknown(said)
    if error in _HOPELESS:
        return Rejected(f"{said}: {_HOPELESS[error]}")
    return Rejected(said) if attempt >= _ATTEMPTS_MAX else Throttled(None, said)


def _sections(text: str) -> list[dict[str, Any]]:
    words = text[:_TEXT_MAX]
    parts = [words[at : at + _SECTION_MAX] for at in range(0, len(words), _SECTION_MAX)] or [" "]
    # Escaping may lengthen a text fivefold, plain_text needs none.
    return [{"type": "section", "text": {"type": "plain_text", "text": part, "emoji": False}} for part in parts]


def _is_cut(message: Message) -> bool:
    return len(message.content) > _TEXT_MAX


def _buttons(message: Message) -> list[dict[str, Any]]:
    if _is_cut(message):
        # No button beside a text that is cut: the person has not seen all of it.
        return []
    task_id, asked_at = ask_of(message), str(message.context.get("asked_at") or "")
    elements: list[dict[str, Any]] = []
    for number, choice in enumerate(message.context.get("choices") or ()):
        text = str(choice)
        value = msgspec.json.encode(Choice(task_id=task_id, asked_at=asked_at, choice=text)).decode()
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


def _how_to_answer(message: Message) -> str:
    ways = "Click, or reply in this thread." if message.context.get("choices") else "Reply in this thread."
    if _is_cut(message):
        name = ask_of(message)
        shown = f"kingdom petition show {name}" if message.context.get("ask_id") else "kingdom inbox"
        ways = f"This is cut. `{shown}` shows all of it, `kingdom answer {name} TEXT` answers it."
    elif message.context.get("ask_id"):
        # A reply in the thread is for the question of the assignment.
        ways = "Click."
    due_at = str(message.context.get("due_at") or "")
    return f"{ways} Time until {escaped(due_at)}." if due_at else ways


def _small(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text[:_SECTION_MAX]}]}

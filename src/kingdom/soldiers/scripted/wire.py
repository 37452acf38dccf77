"""The lines that a scripted agent and its client exchange: one tagged JSON object each."""

from datetime import datetime
from typing import Any

import msgspec

from kingdom.soldiers.agent import Prompt, Update


class SessionOpening(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent is told as it starts, as its only argument: its session, which the transcript tells of last."""

    session: str
    transcript: str


class PromptMessage(msgspec.Struct, frozen=True, tag="Take"):
    """To the agent: a prompt."""

    prompt: Prompt


class InterruptMessage(msgspec.Struct, frozen=True, tag="Interrupt"):
    """To the agent: end the turn of this prompt."""

    prompt_id: str


class EntryWritten(msgspec.Struct, frozen=True, tag="Written"):
    """To the agent: what it noted last is in the transcript."""


class AgentReady(msgspec.Struct, frozen=True, tag="Ready"):
    """From the agent: it takes prompts now."""

    session: str


class EntryToWrite(msgspec.Struct, frozen=True, tag="Noted"):
    """From the agent: what the transcript is to tell; the agent does nothing more until it does."""

    entry: dict[str, Any]


class UpdateMessage(msgspec.Struct, frozen=True, tag="Happened"):
    """From the agent: an update of a turn."""

    prompt_id: str
    update: Update


class FailureMessage(msgspec.Struct, frozen=True, tag="Failed"):
    """From the agent: a turn failed; `until` where its vendor lets it do nothing before."""

    prompt_id: str
    reason: str
    cost_usd: float
    until: datetime | None = None


encode = msgspec.json.encode
decode_for_agent = msgspec.json.Decoder(PromptMessage | InterruptMessage | EntryWritten).decode
decode_for_client = msgspec.json.Decoder(AgentReady | EntryToWrite | UpdateMessage | FailureMessage).decode

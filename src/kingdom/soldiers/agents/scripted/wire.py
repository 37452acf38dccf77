"""The messages between a scripted agent and its client: one tagged JSON object per line."""

from datetime import datetime
from typing import Any

import msgspec

from kingdom.soldiers.agents.port import Prompt, TurnUpdate


class SessionOpening(msgspec.Struct, frozen=True, kw_only=True):
    """The only argument of the agent's program: its session, which is the latest one in the file `transcript`."""

    session: str
    transcript: str


class PromptMessage(msgspec.Struct, frozen=True, tag="Take"):
    """To the agent: a prompt."""

    prompt: Prompt


class InterruptMessage(msgspec.Struct, frozen=True, tag="Interrupt"):
    """To the agent: end the turn of a prompt."""

    prompt_id: str


class EntryWritten(msgspec.Struct, frozen=True, tag="Written"):
    """To the agent: its latest entry is in the transcript."""


class AgentReady(msgspec.Struct, frozen=True, tag="Ready"):
    """From the agent: it takes prompts from now on."""

    session: str


class EntryToWrite(msgspec.Struct, frozen=True, tag="Noted"):
    """From the agent: an entry for the transcript; the agent waits until it is written."""

    entry: dict[str, Any]


class UpdateMessage(msgspec.Struct, frozen=True, tag="Happened"):
    """From the agent: an update of a turn."""

    prompt_id: str
    update: TurnUpdate


class FailureMessage(msgspec.Struct, frozen=True, tag="Failed"):
    """From the agent: a turn failed; `until` is the end of a usage limit."""

    prompt_id: str
    reason: str
    cost_usd: float
    until: datetime | None = None


encode = msgspec.json.encode
decode_for_agent = msgspec.json.Decoder(PromptMessage | InterruptMessage | EntryWritten).decode
decode_for_client = msgspec.json.Decoder(AgentReady | EntryToWrite | UpdateMessage | FailureMessage).decode

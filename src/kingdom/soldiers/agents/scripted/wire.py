"""The lines that a scripted agent and its client exchange: one tagged JSON object each."""

from datetime import datetime
from typing import Any

import msgspec

from kingdom.soldiers.agents.port import Prompt, TurnUpdate


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent is told as it starts, as its only argument: its session, which the transcript tells of last."""

    session: str
    transcript: str


class Take(msgspec.Struct, frozen=True, tag=True):
    """To the agent: a prompt."""

    prompt: Prompt


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    """To the agent: end the turn of this prompt."""

    prompt_id: str


class Written(msgspec.Struct, frozen=True, tag=True):
    """To the agent: what it noted last is in the transcript."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the agent: it takes prompts now."""

    session: str


class Noted(msgspec.Struct, frozen=True, tag=True):
    """From the agent: what the transcript is to tell; the agent does nothing more until it does."""

    entry: dict[str, Any]


class Happened(msgspec.Struct, frozen=True, tag=True):
    """From the agent: an update of a turn."""

    prompt_id: str
    update: TurnUpdate


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From the agent: a turn failed; `until` where its vendor lets it do nothing before."""

    prompt_id: str
    reason: str
    cost_usd: float
    until: datetime | None = None


encode = msgspec.json.encode
decode_for_agent = msgspec.json.Decoder(Take | Interrupt | Written).decode
decode_for_client = msgspec.json.Decoder(Ready | Noted | Happened | Failed).decode

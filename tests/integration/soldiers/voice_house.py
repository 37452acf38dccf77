"""A host as far as the voice of one agent needs it: where calls arrive, and what became of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kingdom.soldiers.sandbox.gate import Gate
from kingdom.soldiers.voice.house import HouseVoice
from kingdom.soldiers.voice.relay import answer
from kingdom.workflow.verdicts import PetitionVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """Where a voice is reached, and which petitions were made by it."""

    voice: HouseVoice
    url: str
    socket: Path
    petitions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@asynccontextmanager
async def open_house(space: Path, socket: Path, *, verdict: PetitionVerdict | None = None) -> AsyncIterator[House]:
    """Listen to the agent in a WorkSpace, in one turn."""

    async def decided(_: str) -> PetitionVerdict | None:
        return verdict

    voice = HouseVoice(space, decided)

    async with Gate(socket, (), voice=partial(answer, voice), on_loopback=True) as gate:
        house = House(voice=voice, url=f"{gate.url}/voice", socket=socket)
        voice.begin("w1-t1#1", lambda kind, body: house.petitions.append((kind, body)))
        yield house

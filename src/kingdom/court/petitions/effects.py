"""What all petitions share that are performed outside: what is sent once, how it is marked, and how it ends."""

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from kingdom.bus.effects.effect import Acked, Attempt, CallResult, Effect, Idempotency, Rejected, Target
from kingdom.bus.event import Event
from kingdom.bus.outcome import Done, Outcome
from kingdom.bus.port import Transaction
from kingdom.clock import utc_now
from kingdom.court.petitions.api import Api, Unreachable, unreachable
from kingdom.court.petitions.commands import without_commands
from kingdom.court.petitions.decision import TOO_LATE, PetitionState
from kingdom.court.petitions.settling import settle
from kingdom.court.streams import PetitionGranted

SETTLES_AFTER = timedelta(seconds=10)
# So far the clocks of two systems may be apart.
CLOCKS_APART = timedelta(minutes=5)
_MARK_DIGITS = 32


class PetitionEffect(Effect[PetitionGranted]):
    """Performs the petitions of one system; what became of a call is found by a mark that all attempts share."""

    def __init__(self, name: str, api: Api, settles_after: timedelta = SETTLES_AFTER) -> None:
        self.name = name
        # Counted from when a call is made, which may be on its way for as long as it may take.
        settled = api.longest_call + settles_after
        self.target = Target(name=name.lower(), idempotency=Idempotency.TIME, settles_after=settled)
        self._api = api

    def key(self, event: Event[PetitionGranted]) -> str:
        """Return what the petition is, however often it is asked for."""
        return event.payload.key

    def request(self, event: Event[PetitionGranted]) -> Mapping[str, Any]:
        """Return the petition, its mark, the time before which nothing of it can be there, and when it is too late."""
        granted = event.payload
        return {
            "kind": granted.kind,
            "body": granted.body,
            "mark": sha256(granted.key.encode()).hexdigest()[:_MARK_DIGITS],
            "since": (granted.created_at - CLOCKS_APART).isoformat(),
            "until": granted.expires_at.isoformat() if granted.expires_at else "",
            "commands": list(granted.commands),
        }

    async def call(self, attempt: Attempt) -> CallResult:
        """Perform it unless it is too late; without a connection nothing has happened and it is tried again soon."""
        until = attempt.request.get("until")
        if until and datetime.fromisoformat(until) <= utc_now():
            return Rejected(TOO_LATE)
        try:
            return await self.send(attempt)
        except Unreachable as error:
            return unreachable(self.name, error)

    @abstractmethod
    async def send(self, attempt: Attempt) -> CallResult:
        """Perform it once."""

    async def conclude(
        self, event: Event[PetitionGranted], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        """Write down how the petition ended, and tell its General."""
        petition_id = event.payload.petition_id
        if isinstance(answer, Acked):
            await settle(transaction, petition_id, PetitionState.PERFORMED, response=answer.response)
        else:
            await settle(transaction, petition_id, PetitionState.FAILED, reason=answer.reason)
        return Done()


def outgoing(text: str, attempt: Attempt) -> str:
    """Return a text of an agent as it leaves the house: without commands to bots that its policy does not allow."""
    return without_commands(text, attempt.request.get("commands", ()))


def since_of(attempt: Attempt) -> datetime:
    """Return the time before which nothing of a petition can be there."""
    return datetime.fromisoformat(attempt.request["since"])

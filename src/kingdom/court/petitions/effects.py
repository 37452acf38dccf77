"""The common part of petitions that outside systems perform: the request, its mark, and the result."""

import asyncio
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
from kingdom.court.petitions.commands import without_commands
from kingdom.court.petitions.decision import TOO_LATE, PetitionState
from kingdom.court.petitions.http_api import HttpApi, NotAuthorized, Unreachable, unreachable_result
from kingdom.court.petitions.settlement import settle_petition
from kingdom.court.streams import PetitionGranted

# Performing a petition ends after this time, however many calls it makes.
LONGEST_SEND = timedelta(minutes=2)
# After a successful call, an outside system lists the result within this time.
VISIBLE_AFTER = timedelta(seconds=10)
# How much the clocks of two systems may differ.
CLOCK_DIFFERENCE_MAX = timedelta(minutes=5)
_MARK_DIGITS = 32


class PetitionEffect(Effect[PetitionGranted]):
    """Performs the petitions of one system.

    Each text contains a mark, which is the same in all attempts. `reconcile` searches for it to find out whether an
    earlier call succeeded.
    """

    def __init__(
        self,
        name: str,
        api: HttpApi,
        visible_after: timedelta = VISIBLE_AFTER,
        longest_send: timedelta = LONGEST_SEND,
    ) -> None:
        self.name = name
        self._longest_send = longest_send
        # This time counts from the start of `call`. The system may still execute the last request when `send` ends.
        settles_after = longest_send + api.longest_call + visible_after
        self.target = Target(name=name.lower(), idempotency=Idempotency.TIME, settles_after=settles_after)
        self._api = api

    def key(self, event: Event[PetitionGranted]) -> str:
        """Return the idempotency key of the petition."""
        return event.payload.key

    def request(self, event: Event[PetitionGranted]) -> Mapping[str, Any]:
        """Return the petition, its mark, the earliest time at which its result can exist, and its deadline."""
        granted = event.payload
        return {
            "kind": granted.kind,
            "body": granted.body,
            "mark": sha256(granted.key.encode()).hexdigest()[:_MARK_DIGITS],
            "since": (granted.created_at - CLOCK_DIFFERENCE_MAX).isoformat(),
            "until": granted.expires_at.isoformat() if granted.expires_at else "",
            "commands": list(granted.commands),
        }

    async def call(self, attempt: Attempt) -> CallResult:
        """Perform the petition unless it is too late. If the system cannot be reached, the bus tries again later."""
        until = attempt.request.get("until")
        if until and datetime.fromisoformat(until) <= utc_now():
            return Rejected(TOO_LATE)
        try:
            async with asyncio.timeout(self._longest_send.total_seconds()):
                return await self.send(attempt)
        except Unreachable as error:
            return unreachable_result(self.name, error)
        except NotAuthorized as error:
            return Rejected(str(error))

    @abstractmethod
    async def send(self, attempt: Attempt) -> CallResult:
        """Perform the petition once, with one or several requests."""

    async def conclude(
        self, event: Event[PetitionGranted], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        """Store how the petition ended, and notify its General."""
        petition_id = event.payload.petition_id
        if isinstance(answer, Acked):
            await settle_petition(transaction, petition_id, PetitionState.PERFORMED, response=answer.response)
        else:
            await settle_petition(transaction, petition_id, PetitionState.FAILED, reason=answer.reason)
        return Done()


def without_forbidden_commands(text: str, attempt: Attempt) -> str:
    """Return a text without commands to bots that the policy does not allow."""
    return without_commands(text, attempt.request.get("commands", ()))


def earliest_time(attempt: Attempt) -> datetime:
    """Return the earliest time at which the result of the petition can exist."""
    return datetime.fromisoformat(attempt.request["since"])

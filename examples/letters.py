"""Letters: everybody who joins gets one, and never two. No network: the outside is the folder `letters` beside you.

kingdom bus publish --app examples.letters:app --type MemberJoined --payload '{"name": "anna"}'
kingdom bus work examples.letters:app
"""

from pathlib import Path
from typing import Any

from kingdom import bus

Member = bus.Event[dict[str, Any]]
LETTERS = Path("letters")
members = bus.Stream(name="members", subscribes=frozenset({"MemberJoined"}))
dispatcher = bus.Dispatcher()


class Welcome(bus.Effect[dict[str, Any]]):
    """Write a letter; written again under the same identifier, it is the same letter."""

    target = bus.Target(name="letter box", idempotency=bus.Idempotency.IDENTIFIER, calls_per_second=10)

    def key(self, event: Member) -> str:
        """Name what must happen at most once: one letter for each member."""
        return f"welcome:{event.payload['name']}"

    def request(self, event: Member) -> dict[str, Any]:
        """Take the snapshot that every attempt sends."""
        return {"text": f"Dear {event.payload['name']}, welcome!\n"}

    async def call(self, attempt: bus.Attempt) -> bus.CallResult:
        """Send it; if we die in here, nobody knows whether it was sent, and `reconcile` finds out."""
        place = self._place(attempt)
        place.write_text(attempt.request["text"])
        return bus.Acked({"letter": place.name})

    async def reconcile(self, attempt: bus.Attempt) -> bus.ReconcileResult:
        """Look whether the letter is there, whole."""
        place = self._place(attempt)
        whole = place.exists() and place.read_text() == attempt.request["text"]
        return bus.Present({"letter": place.name}) if whole else bus.Absent()

    async def conclude(
        self, event: Member, answer: bus.Acked | bus.Rejected, transaction: bus.Transaction
    ) -> bus.Outcome:
        """Remember who was welcomed, in the transaction that records the answer."""
        if isinstance(answer, bus.Acked):
            name = event.payload["name"]
            await transaction.put(bus.Record(kind="member", id=name, state="welcomed", doc=dict(answer.response)))
        return await super().conclude(event, answer, transaction)

    def _place(self, attempt: bus.Attempt) -> Path:
        LETTERS.mkdir(exist_ok=True)
        return LETTERS / f"{attempt.identifier}.txt"


dispatcher.effect("MemberJoined", Welcome())
kinds = [bus.RecordKind(name="member", directories={"welcomed": "members/welcomed"})]
app = bus.Application(bus.Topology([members]), dispatcher, kinds)

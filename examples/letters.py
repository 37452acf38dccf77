"""Send each new member exactly one letter. It needs no network: letters are files in the folder `letters`.

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
    """Write a letter. Attempts with the same identifier write the same file."""

    target = bus.Target(name="letter box", idempotency=bus.Idempotency.IDENTIFIER, calls_per_second=10)

    def key(self, event: Member) -> str:
        """Return a key. The effect happens at most once per key, so each member gets one letter."""
        return f"welcome:{event.payload['name']}"

    def request(self, event: Member) -> dict[str, Any]:
        """Return the data that every attempt sends."""
        return {"text": f"Dear {event.payload['name']}, welcome!\n"}

    async def call(self, attempt: bus.Attempt) -> bus.CallResult:
        """Write the letter. After a crash in this method, `reconcile` checks whether the letter was written."""
        letter = self._letter_path(attempt)
        letter.write_text(attempt.request["text"])
        return bus.Acked({"letter": letter.name})

    async def reconcile(self, attempt: bus.Attempt) -> bus.ReconcileResult:
        """Check whether the complete letter exists."""
        letter = self._letter_path(attempt)
        is_complete = letter.exists() and letter.read_text() == attempt.request["text"]
        return bus.Present({"letter": letter.name}) if is_complete else bus.Absent()

    async def conclude(
        self, event: Member, answer: bus.Acked | bus.Rejected, transaction: bus.Transaction
    ) -> bus.Outcome:
        """Store the member in the transaction that records the result."""
        if isinstance(answer, bus.Acked):
            name = event.payload["name"]
            await transaction.put(bus.Record(kind="member", id=name, state="welcomed", doc=dict(answer.response)))
        return await super().conclude(event, answer, transaction)

    def _letter_path(self, attempt: bus.Attempt) -> Path:
        LETTERS.mkdir(exist_ok=True)
        return LETTERS / f"{attempt.identifier}.txt"


dispatcher.effect("MemberJoined", Welcome())
kinds = [bus.RecordKind(name="member", directories={"welcomed": "members/welcomed"})]
app = bus.Application(bus.Topology([members]), dispatcher, kinds)

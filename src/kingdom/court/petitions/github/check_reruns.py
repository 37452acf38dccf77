"""Run cancelled and timed-out checks of a followed pull request again, before they count as failed."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from kingdom.bus.effects.effect import (
    Absent,
    Acked,
    Attempt,
    CallResult,
    Effect,
    Idempotency,
    Present,
    ReconcileResult,
    Rejected,
    Target,
    Unclear,
)
from kingdom.bus.event import Event
from kingdom.bus.outcome import Done, Outcome
from kingdom.bus.port import Transaction
from kingdom.court.documents import ExternalEvent
from kingdom.court.followups.rules import RERUN
from kingdom.court.petitions.effects import VISIBLE_AFTER
from kingdom.court.petitions.github.api import NAME, GithubApi, github_result
from kingdom.court.petitions.http_api import NotAuthorized, Unreachable, require_body, unreachable_result
from kingdom.court.records import EVENTS, save
from kingdom.court.streams import CheckRerunDue, event_received

_COMPLETED = "completed"


class CheckReruns(Effect[CheckRerunDue]):
    """Runs a check again: a job of GitHub Actions by itself, any other check by asking the App that reported it."""

    def __init__(self, api: GithubApi, visible_after: timedelta = VISIBLE_AFTER) -> None:
        self._api = api
        self.target = Target(
            name=NAME.lower(), idempotency=Idempotency.TIME, settles_after=api.longest_call + visible_after
        )

    def key(self, event: Event[CheckRerunDue]) -> str:
        """Return a key for each check run. Its next run has another id."""
        return f"rerun {event.payload.repo} {event.payload.check_id}"

    def request(self, event: Event[CheckRerunDue]) -> Mapping[str, Any]:
        """Return the check."""
        request: dict[str, Any] = msgspec.to_builtins(event.payload)
        return request

    async def call(self, attempt: Attempt) -> CallResult:
        """Run the check again. If GitHub cannot be reached, the bus tries again later."""
        check = msgspec.convert(attempt.request, CheckRerunDue)
        part = f"actions/jobs/{check.check_id}/rerun" if check.is_job else f"check-runs/{check.check_id}/rerequest"
        try:
            return github_result(await self._api.send(f"/repos/{check.repo}/{part}", {}))
        except Unreachable as error:
            return unreachable_result(NAME, error)
        except NotAuthorized as error:
            return Rejected(str(error))

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """Find out whether the suite has a newer run of the check, or runs it at the moment."""
        check = msgspec.convert(attempt.request, CheckRerunDue)
        if check.suite is None:
            return Unclear(f"GitHub did not say to which suite the check {check.name} belongs")
        path = f"/repos/{check.repo}/check-suites/{check.suite}/check-runs"
        reply = require_body(await self._api.ask(path, check_name=check.name), dict, NAME)
        runs = [each for each in reply.get("check_runs") or () if isinstance(each, dict)]
        begun = [each for each in runs if each.get("id") != check.check_id or each.get("status") != _COMPLETED]
        return Present() if begun else Absent()

    async def conclude(
        self, event: Event[CheckRerunDue], result: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        """If the check cannot be run again, publish its event again. The King then counts the check as failed."""
        record = await transaction.get(EVENTS.name, event.payload.event_id)
        if isinstance(result, Rejected) and record and record.doc.get("outcome") == RERUN:
            await save(transaction, msgspec.convert(record.doc, ExternalEvent).as_new(), record)
            await transaction.publish(event_received(event.payload.event_id))
        return Done()

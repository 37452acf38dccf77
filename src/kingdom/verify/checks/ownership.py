"""Check that a stale worker changes nothing, and that no two workers handle one key at the same time."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kingdom.verify.evidence import Claim, CopyId, Evidence
from kingdom.verify.violation import Violation, ViolationKind

_FINAL = frozenset({"done", "dead"})


@dataclass(slots=True)
class _Handling:
    """One run of a handler. If its process died first, `ended` is the time of the last entry of the process."""

    key: CopyId
    event: str
    process: str
    token: int
    began: int
    ended: int


def stale_settlements(evidence: Evidence) -> Iterator[Violation]:
    """Find settlements under an old token.

    After a final settlement an event is never claimed again, so any newer claim proves that the settlement was stale.
    After other settlements the event is claimed again, so they are stale only if the newer claim came before them.
    """
    for entry in evidence.entries("settled"):
        facts = entry.facts
        for position, outcome in facts["outcomes"].items():
            claims = evidence.claims_of.get(int(position), [])
            newer = [
                claim
                for claim in claims
                if claim.token > facts["token"]
                and evidence.is_takeover(claim, entry.process)
                and not _is_after_redrive(evidence, claim)
            ]
            if newer and (outcome in _FINAL or min(claim.at for claim in newer) < facts["began"]):
                detail = f"token {facts['token']} settled it as {outcome} though token {newer[-1].token} owned it"
                yield Violation(ViolationKind.STALE, position, detail)
    for applied in evidence.applied:
        stored = evidence.stored.get((applied["stream"], applied["event"]))
        if stored and stored.status == "DONE" and stored.token not in (None, applied["token"]):
            detail = f"applied under token {applied['token']}, done under token {stored.token}"
            yield Violation(ViolationKind.STALE, str(stored.position), detail)


def _is_after_redrive(evidence: Evidence, claim: Claim) -> bool:
    """Return whether the operator redrove the event before this claim."""
    asked = evidence.first_redriven.get(claim.event)
    return asked is not None and asked < claim.at


def live_leases_lost(evidence: Evidence) -> Iterator[Violation]:
    """Find events that another worker got although the lease of a living holder was valid."""
    for former, later in lost_claims(evidence):
        lived = evidence.last_seen[former.process] > later.at
        if lived and evidence.lease_is_valid(former.stream, former.token, later.at):
            detail = f"{later.process} got it under token {later.token} before the lease of {former.process} ended"
            yield Violation(ViolationKind.TAKEN, former.event, detail)


def lost_claims(evidence: Evidence) -> Iterator[tuple[Claim, Claim]]:
    """Return each claim that was not settled before the next claim of the same event, together with the next claim."""
    for claims in evidence.claims_of.values():
        for former, later in pairwise(claims):
            began = evidence.settling_began.get((former.position, former.token))
            # `settling_began` is enough: a process that dies right after its commit has not recorded the settlement.
            if (began is None or began > later.at) and not _is_after_redrive(evidence, later):
                yield former, later


def overlapping_handlers(evidence: Evidence) -> Iterator[Violation]:
    """Find handlers of one key that ran at the same time although the first lease was valid.

    A process that is stopped for longer than its lease may overlap with the next holder, since its writes are refused.
    """
    claimed_at = {(claim.token, claim.stream, claim.event): claim.at for claim in evidence.claims}
    by_key: dict[CopyId, list[_Handling]] = defaultdict(list)
    for handling in _handlings(evidence):
        by_key[handling.key].append(handling)
    for key, handlings in by_key.items():
        running: list[_Handling] = []
        for handling in handlings:
            running = [other for other in running if other.ended > handling.began]
            at = claimed_at.get((handling.token, key[0], handling.event), handling.began)
            for other in running:
                if other.token == handling.token or evidence.lease_is_valid(key[0], other.token, at):
                    detail = f"{handling.event} ran in {handling.process} while {other.event} ran in {other.process}"
                    yield Violation(ViolationKind.OVERLAP, "/".join(key), detail)
            running.append(handling)


def _handlings(evidence: Evidence) -> list[_Handling]:
    """Return every run of a handler, ordered by its start."""
    found: list[_Handling] = []
    unfinished: dict[tuple[str, str, str, int], _Handling] = {}
    for entry in evidence.entries("started", "finished"):
        stream, event, token = entry.facts["stream"], entry.facts["event"], entry.facts["token"]
        which = (entry.process, stream, event, token)
        if entry.what == "started":
            end = evidence.last_seen[entry.process]
            handling = _Handling(evidence.ordering_key(stream, event), event, entry.process, token, entry.at, end)
            found.append(handling)
            unfinished[which] = handling
        elif which in unfinished:
            unfinished.pop(which).ended = entry.at
    return found

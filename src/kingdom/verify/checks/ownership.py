"""One holder at a time: a stale one changes nothing, a valid lease is not given away, two never work on one key."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kingdom.verify.evidence import Claim, CopyId, Evidence
from kingdom.verify.violation import Violation, ViolationKind

_FINAL = frozenset({"done", "dead"})


@dataclass(slots=True)
class _Handling:
    """One run of a handler; it lasts until it ends, or until the last sign of life of its process."""

    line: CopyId
    event: str
    process: str
    token: int
    began: int
    ended: int


def stale(evidence: Evidence) -> Iterator[Violation]:
    """Look for settlements under an old token: a final one ends all claims, so a newer claim proves it came too late.

    One that gives the event back may be followed by newer claims; it is stale where such a claim was there before it.
    """
    for facts in evidence.of("settled"):
        for position, outcome in facts["outcomes"].items():
            claims = evidence.claims_of.get(int(position), [])
            newer = [claim for claim in claims if claim.token > facts["token"] and not _is_next_round(evidence, claim)]
            if newer and (outcome in _FINAL or min(claim.at for claim in newer) < facts["began"]):
                detail = f"token {facts['token']} settled it as {outcome} though token {newer[-1].token} owned it"
                yield Violation(ViolationKind.STALE, position, detail)
    for applied in evidence.applied:
        stored = evidence.stored.get((applied["stream"], applied["event"]))
        if stored and stored.status == "DONE" and stored.token != applied["token"]:
            detail = f"applied under token {applied['token']}, done under token {stored.token}"
            yield Violation(ViolationKind.STALE, str(stored.position), detail)


def _is_next_round(evidence: Evidence, claim: Claim) -> bool:
    """Tell whether an operator had sent the event on another round before."""
    asked = evidence.first_redriven.get(claim.event)
    return asked is not None and asked < claim.at


def taken(evidence: Evidence) -> Iterator[Violation]:
    """Look for events that were given to another while the lease of a living holder was not over."""
    for former, later in lost_claims(evidence):
        lived = evidence.last_signs[former.process] > later.at
        if lived and evidence.is_kept(former.stream, former.token, later.at):
            detail = f"{later.process} got it under token {later.token} before the lease of {former.process} was over"
            yield Violation(ViolationKind.TAKEN, former.event, detail)


def lost_claims(evidence: Evidence) -> Iterator[tuple[Claim, Claim]]:
    """Return each claim that nobody began to settle before the same event was given to somebody again."""
    for claims in evidence.claims_of.values():
        for former, later in pairwise(claims):
            began = evidence.settling_began.get((former.position, former.token))
            # Who has died in the moment after its commit has not written down what it settled.
            if (began is None or began > later.at) and not _is_next_round(evidence, later):
                yield former, later


def overlapped(evidence: Evidence) -> Iterator[Violation]:
    """Look for two handlers of one key at the same time, the second of which was given its event too early.

    Who was stopped past its lease finds out late that another has its key: what it writes then is refused.
    """
    given = {(claim.token, claim.stream, claim.event): claim.at for claim in evidence.claims}
    lines: dict[CopyId, list[_Handling]] = defaultdict(list)
    for handling in _handlings(evidence):
        lines[handling.line].append(handling)
    for line, handlings in lines.items():
        running: list[_Handling] = []
        for handling in handlings:
            running = [other for other in running if other.ended > handling.began]
            at = given.get((handling.token, line[0], handling.event), handling.began)
            for other in running:
                if other.token == handling.token or evidence.is_kept(line[0], other.token, at):
                    detail = f"{handling.event} ran in {handling.process} while {other.event} ran in {other.process}"
                    yield Violation(ViolationKind.OVERLAP, "/".join(line), detail)
            running.append(handling)


def _handlings(evidence: Evidence) -> list[_Handling]:
    """Return every run of a handler in the order of their beginnings."""
    found: list[_Handling] = []
    unfinished: dict[tuple[str, str, str, int], _Handling] = {}
    for entry in evidence.entries("started", "finished"):
        stream, event, token = entry.facts["stream"], entry.facts["event"], entry.facts["token"]
        which = (entry.process, stream, event, token)
        if entry.what == "started":
            end = evidence.last_signs[entry.process]
            handling = _Handling(evidence.line(stream, event), event, entry.process, token, entry.at, end)
            found.append(handling)
            unfinished[which] = handling
        elif which in unfinished:
            unfinished.pop(which).ended = entry.at
    return found

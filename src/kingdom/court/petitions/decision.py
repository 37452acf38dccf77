"""What a petition is, and whether a General's policy allows it. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

import msgspec

from kingdom.bus.record import RecordKind
from kingdom.court.package import REVIEW, GeneralPolicy, PetitionRule
from kingdom.court.petitions.bodies import KINDS
from kingdom.workflow.verdicts import Verdict

# What left the house is known for as long as the run is that asked for it.
_KEPT = timedelta(days=90)
# Longer than the bus goes on trying; then the assignment shall not wait any more.
_GIVEN_UP_AFTER = timedelta(hours=3)
TOO_LATE = "it could not be done in the time that the policy gives it"
# Enough that no two petitions are ever taken for one.
_ID_DIGITS = 32
_WILD = "*?["
# A glob names a place outside of the assignment if this stands before its first wildcard.
_NAMED_BY = {"github": "/", "jira": "-", "slack": ""}


class PetitionState(StrEnum):
    """How far a petition has come."""

    REQUESTED = "requested"
    GRANTED = "granted"
    REFUSED = "refused"
    PERFORMED = "performed"
    FAILED = "failed"


OPEN = frozenset({PetitionState.REQUESTED, PetitionState.GRANTED})
COUNTED = OPEN | {PetitionState.PERFORMED}


class Petition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One output of an assignment; however often its agents ask for the same, it is one petition.

    `number` is its place in the order of its assignment; `asked_as` are the ids under which agents asked for it;
    `foreign` if it leaves what its assignment is about; `unclear` where it was given up and may have been done all the
    same. A person is asked until `approve_by`, and `decided_by` is who said yes or, where it is `rejected`, no.
    `commands` are globs of what its texts may say to bots.
    """

    id: str
    root: str
    general: str
    workflow_id: str
    kind: str
    body: dict[str, Any]
    target: str
    created_at: datetime
    number: int = 0
    expires_at: datetime | None = None
    approve_by: datetime | None = None
    decided_by: str = ""
    decided_at: datetime | None = None
    rejected: bool = False
    granted_at: datetime | None = None
    ended_at: datetime | None = None
    state: PetitionState = PetitionState.REQUESTED
    foreign: bool = False
    unclear: bool = False
    reason: str = ""
    response: dict[str, Any] = {}
    asked_as: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return what must happen at most once."""
        return f"petition:{self.id}"

    @property
    def system(self) -> str:
        """Return the name of the target that performs it."""
        return self.kind.partition(".")[0]

    @property
    def counts(self) -> bool:
        """Tell whether it has had an effect outside, or may have one."""
        return self.unclear or self.state in COUNTED

    @property
    def awaits_person(self) -> bool:
        """Tell whether a person has to approve it first."""
        return self.state is PetitionState.REQUESTED and self.approve_by is not None and not self.decided_by

    @property
    def due_at(self) -> datetime | None:
        """Return when it is too late for what it waits for."""
        if self.state is PetitionState.GRANTED and self.granted_at:
            return self.granted_at + _GIVEN_UP_AFTER
        if self.state is PetitionState.REQUESTED:
            return self.approve_by if self.awaits_person else self.expires_at
        return None

    @property
    def verdict(self) -> Verdict:
        """Return what its agents are told."""
        if self.state in (PetitionState.REFUSED, PetitionState.FAILED):
            return Verdict(granted=False, reason=self.reason)
        if self.awaits_person:
            return Verdict(granted=None, reason="a person is asked to approve it first")
        waits = self.state is PetitionState.REQUESTED
        return Verdict(granted=True, reason="it is done in its turn, after this work if need be" if waits else "")


PETITIONS = RecordKind(
    name="petition",
    directories={state: f"state/petitions/{state}" for state in PetitionState},
    final=frozenset({PetitionState.REFUSED, PetitionState.PERFORMED, PetitionState.FAILED}),
    retention=_KEPT,
)


@dataclass(frozen=True, slots=True)
class GrantDecision:
    """It shall be performed, unless it could not be in time, and with `approval` only if a person agrees."""

    approval: bool = False
    expires_after: timedelta = timedelta(hours=168)
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusalDecision:
    """It is not performed."""

    reason: str


def petition_id_of(root: str, kind: str, body: Mapping[str, Any]) -> str:
    """Return the id of a petition: the same words for the same assignment are the same petition."""
    digest = sha256(msgspec.json.encode([kind, body], order="deterministic")).hexdigest()
    return f"{root}-{digest[:_ID_DIGITS]}"


def decide_petition(
    petition: Petition, policy: GeneralPolicy, earlier: Collection[Petition]
) -> GrantDecision | RefusalDecision:
    """Return whether a policy allows a petition beside those that the same assignment has made before."""
    if petition.kind not in KINDS:
        return RefusalDecision(f"{petition.kind!r} is no kind of petition; there are: {', '.join(KINDS)}")
    rules = [rule for rule in policy.petitions if rule.kind == petition.kind]
    if not rules:
        return RefusalDecision(f"the policy of {petition.general} does not allow {petition.kind}")
    fitting = [rule for rule in rules if _fits_one(petition, rule.targets)]
    if not fitting:
        globs = ", ".join(glob for rule in rules for glob in rule.targets)
        outside = "; what the assignment is not about must be named there by more than *" if petition.foreign else ""
        return RefusalDecision(
            f"{petition.target or 'this'} is no target that {petition.general} may reach ({globs}){outside}"
        )
    if petition.kind == REVIEW:
        fitting, named = [rule for rule in fitting if petition.body["event"] in rule.events], fitting
        if not fitting:
            events = ", ".join(sorted({event for rule in named for event in rule.events}))
            return RefusalDecision(
                f"the policy of {petition.general} allows no {REVIEW} with the event {petition.body['event']};"
                f" use one of: {events}"
            )
    size = len(msgspec.json.encode(petition.body))
    wide = [rule for rule in fitting if size <= rule.body_bytes_max]
    if not wide:
        most = max(rule.body_bytes_max for rule in fitting)
        return RefusalDecision(
            f"its body has {size} bytes, and the policy of {petition.general} allows {most}: make it shorter"
        )
    counted = [other for other in earlier if other.id != petition.id and other.counts]
    for rule in wide:
        used = sum(other.kind == rule.kind and _fits_one(other, rule.targets) for other in counted)
        if used < rule.at_most:
            return _granted_by(rule)
    most = max(rule.at_most for rule in wide)
    return RefusalDecision(
        f"the policy of {petition.general} allows at most {most} of {petition.kind} in one assignment"
    )


def irreversible_petitions(petitions: Collection[Petition], kept: Collection[str]) -> list[Petition]:
    """Return what is or may be outside and that nothing of a run stands for any more: what git cannot undo.

    `kept` are the ids of the petitions of all Works that a return to an earlier point leaves as they are.
    """
    outside = [each for each in petitions if each.counts and each.state is not PetitionState.REQUESTED]
    return [each for each in outside if not set(each.asked_as) & set(kept)]


def _granted_by(rule: PetitionRule) -> GrantDecision:
    expires_after = timedelta(hours=rule.expires_hours)
    return GrantDecision(approval=rule.approval, expires_after=expires_after, commands=rule.commands)


def _fits_one(petition: Petition, globs: Collection[str]) -> bool:
    return any(_fits(petition, glob) for glob in globs)


def _fits(petition: Petition, glob: str) -> bool:
    """Tell whether a glob covers a petition; one for a whole repository covers all that is in it."""
    names = {petition.target}
    match petition.kind.partition(".")[0]:
        case "github":
            names.add(petition.target.partition("#")[0])
        case "slack":
            # People write a channel with and without its sign.
            names.add(petition.target.removeprefix("#"))
            glob = glob.removeprefix("#")
    fits = any(fnmatchcase(name.lower(), glob.lower()) for name in names)
    return fits and (not petition.foreign or _names_a_place(glob, petition.kind))


def _names_a_place(glob: str, kind: str) -> bool:
    literal = glob[: next((at for at, letter in enumerate(glob) if letter in _WILD), len(glob))]
    return bool(literal) and _NAMED_BY[kind.partition(".")[0]] in literal

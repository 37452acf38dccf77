"""Petitions, and whether a General's policy allows them. This module does no I/O."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

import msgspec

from kingdom.bus.record import RecordKind
from kingdom.court.package import LABEL, REVIEW, GeneralPolicy, PetitionRule
from kingdom.court.petitions.bodies import AUTO_MERGE, KINDS, PUSH
from kingdom.workflow.verdicts import PetitionVerdict

# A petition is kept as long as the run that requested it.
_RETENTION = timedelta(days=90)
# A granted petition without an outcome fails after this time, so that its assignment can end. The bus has stopped
# retrying by then.
_GIVEN_UP_AFTER = timedelta(hours=3)
TOO_LATE = "it could not be performed within the time that the policy allows"
# Long enough that ids never collide.
_ID_DIGITS = 32
_WILDCARDS = "*?["
# A foreign target, which the assignment is not about, needs a glob with this text before its first wildcard, such as
# `acme/*`.
_SPECIFIC_TEXTS = {"github": "/", "jira": "-", "slack": ""}


class PetitionState(StrEnum):
    """The state of a petition."""

    REQUESTED = "requested"
    GRANTED = "granted"
    REFUSED = "refused"
    PERFORMED = "performed"
    FAILED = "failed"


OPEN = frozenset({PetitionState.REQUESTED, PetitionState.GRANTED})
# A petition in one of these states counts toward the limit of a policy.
COUNTED = OPEN | {PetitionState.PERFORMED}


class Petition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action that an assignment requests. Repeated requests for the same action are one petition.

    `root` is the id of the assignment, and `number` the position of the petition within it. `asked_as` are the ids of
    the agents' requests. `foreign` means that the target is not what the assignment is about. `unclear` means that the
    petition failed at its deadline, but may have been performed. A person can approve the petition until `approve_by`.
    `approval` is for a petition about a commit: the policy requires a person to approve the commit. `approval_reason`
    is any other reason to ask a person.
    `stranger` is who caused the run, if the policy does not name this person.
    `decided_by` is the person who approved it, or who rejected it if `rejected` is set. `commands` are globs of allowed
    commands to bots.
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
    approval: bool = False
    approval_reason: str = ""
    stranger: str = ""
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
    # How long the pull request of this petition is followed; 0 if it is not.
    follow_days: float = 0.0

    @property
    def key(self) -> str:
        """Return the idempotency key. A push or a merge of another commit is another call."""
        of_commit = f":{self.body.get('head_sha', '')}" if self.kind in (PUSH, AUTO_MERGE) else ""
        return f"petition:{self.id}{of_commit}"

    @property
    def system(self) -> str:
        """Return the name of the system that performs the petition."""
        return self.kind.partition(".")[0]

    @property
    def counts(self) -> bool:
        """Return whether the petition has had, or may still have, an effect outside."""
        return self.unclear or self.state in COUNTED

    @property
    def awaits_person(self) -> bool:
        """Return whether the petition waits for a person's approval."""
        return self.state is PetitionState.REQUESTED and self.approve_by is not None and not self.decided_by

    @property
    def due_at(self) -> datetime | None:
        """Return the deadline of the current state, or None."""
        if self.state is PetitionState.GRANTED and self.granted_at:
            return self.granted_at + _GIVEN_UP_AFTER
        if self.state is PetitionState.REQUESTED:
            return self.approve_by if self.awaits_person else self.expires_at
        return None

    @property
    def verdict(self) -> PetitionVerdict:
        """Return the verdict that agents see."""
        if self.state in (PetitionState.REFUSED, PetitionState.FAILED):
            return PetitionVerdict(granted=False, reason=self.reason)
        if self.awaits_person:
            return PetitionVerdict(granted=None, reason="a person is asked to approve it first")
        waits = self.state is PetitionState.REQUESTED
        return PetitionVerdict(
            granted=True,
            reason="it is performed in order, after earlier petitions, perhaps when this work has ended"
            if waits
            else "",
        )


PETITIONS = RecordKind(
    name="petition",
    directories={state: f"state/petitions/{state}" for state in PetitionState},
    final=frozenset({PetitionState.REFUSED, PetitionState.PERFORMED, PetitionState.FAILED}),
    retention=_RETENTION,
    indexes=("root",),
)


@dataclass(frozen=True, slots=True)
class GrantDecision:
    """The petition may be performed within `expires_after`. If `approval` is set, a person must approve it first."""

    approval: bool = False
    expires_after: timedelta = timedelta(hours=168)
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusalDecision:
    """The petition is not performed."""

    reason: str


def petition_id_of(root: str, kind: str, body: Mapping[str, Any], work_id: str = "") -> str:
    """Return the id of a petition. It is the same for a repeated request in the assignment, or in the given Work."""
    content = [kind, body, work_id] if work_id else [kind, body]
    digest = sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
    return f"{root}-{digest[:_ID_DIGITS]}"


def decide_petition(
    petition: Petition, policy: GeneralPolicy, earlier: Collection[Petition]
) -> GrantDecision | RefusalDecision:
    """Decide whether a policy allows a petition, given the earlier petitions of the assignment."""
    if petition.kind not in KINDS:
        return RefusalDecision(f"{petition.kind!r} is not a kind of petition; available: {', '.join(KINDS)}")
    rules = [rule for rule in policy.petitions if rule.kind == petition.kind]
    if not rules:
        return RefusalDecision(f"the policy of {petition.general} does not allow {petition.kind}")
    fitting = [rule for rule in rules if _fits_any(petition, rule.targets)]
    if not fitting:
        globs = ", ".join(glob for rule in rules for glob in rule.targets)
        outside = (
            "; a target that the assignment is not about needs a more specific glob than *" if petition.foreign else ""
        )
        return RefusalDecision(
            f"{petition.target or 'this'} is not an allowed target of {petition.general} ({globs}){outside}"
        )
    if not (allowing := [rule for rule in fitting if _allows_content(rule, petition)]):
        return RefusalDecision(_why_not_allowed(petition, fitting))
    size = len(msgspec.json.encode(petition.body))
    wide = [rule for rule in allowing if size <= rule.body_bytes_max]
    if not wide:
        most = max(rule.body_bytes_max for rule in allowing)
        return RefusalDecision(
            f"its body has {size} bytes, and the policy of {petition.general} allows {most}: make it shorter"
        )
    counted = [other for other in earlier if other.id != petition.id and other.counts]
    for rule in wide:
        used = sum(other.kind == rule.kind and _fits_any(other, rule.targets) for other in counted)
        if used < rule.at_most:
            return _granted_by(rule)
    most = max(rule.at_most for rule in wide)
    return RefusalDecision(
        f"the policy of {petition.general} allows at most {most} of {petition.kind} in one assignment"
    )


def irreversible_petitions(petitions: Collection[Petition], kept: Collection[str]) -> list[Petition]:
    """Return the petitions that may have been performed, but whose Works are rolled back. A rollback cannot undo them.

    `kept` are the ids of the agents' requests, as in `asked_as`, of all Works that the rollback keeps.
    """
    outside = [each for each in petitions if each.counts and each.state is not PetitionState.REQUESTED]
    return [each for each in outside if not set(each.asked_as) & set(kept)]


def _granted_by(rule: PetitionRule) -> GrantDecision:
    expires_after = timedelta(hours=rule.expires_hours)
    # Every automatic merge needs an approval, even if the policy requires none.
    approval = rule.approval or rule.kind == AUTO_MERGE
    return GrantDecision(approval=approval, expires_after=expires_after, commands=rule.commands)


def _allows_content(rule: PetitionRule, petition: Petition) -> bool:
    """Return whether a rule allows the verdict of a review, or the labels."""
    if petition.kind == REVIEW:
        return petition.body["event"] in rule.events
    return petition.kind != LABEL or not _forbidden_labels(petition, [rule])


def _why_not_allowed(petition: Petition, rules: Collection[PetitionRule]) -> str:
    """Return why no rule allows the content of a petition."""
    if petition.kind == REVIEW:
        events = ", ".join(sorted({event for rule in rules for event in rule.events}))
        return (
            f"the policy of {petition.general} allows no {REVIEW} with the event {petition.body['event']};"
            f" use one of: {events}"
        )
    names = ", ".join(_forbidden_labels(petition, rules)) or "these labels together"
    globs = ", ".join(sorted({glob for rule in rules for glob in rule.labels}))
    return f"the policy of {petition.general} does not allow {names} as {LABEL}; use one of: {globs}"


def _forbidden_labels(petition: Petition, rules: Collection[PetitionRule]) -> list[str]:
    """Return the labels of a petition that no glob allows."""
    wanted = [*petition.body["labels"], *petition.body["remove"]]
    globs = [glob.lower() for rule in rules for glob in rule.labels]
    return [name for name in wanted if not any(fnmatchcase(name.lower(), glob) for glob in globs)]


def _fits_any(petition: Petition, globs: Collection[str]) -> bool:
    return any(_fits(petition, glob) for glob in globs)


def _fits(petition: Petition, glob: str) -> bool:
    """Return whether a glob covers a petition. A glob for a repository covers everything in it."""
    names = {petition.target}
    match petition.kind.partition(".")[0]:
        case "github":
            names.add(petition.target.partition("#")[0])
        case "slack":
            # People write a channel with and without #.
            names.add(petition.target.removeprefix("#"))
            glob = glob.removeprefix("#")
    fits = any(fnmatchcase(name.lower(), glob.lower()) for name in names)
    return fits and (not petition.foreign or _is_specific(glob, petition.kind))


def _is_specific(glob: str, kind: str) -> bool:
    literal = glob[: next((at for at, letter in enumerate(glob) if letter in _WILDCARDS), len(glob))]
    return bool(literal) and _SPECIFIC_TEXTS[kind.partition(".")[0]] in literal

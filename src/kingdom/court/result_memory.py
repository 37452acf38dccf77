"""Results as memory: which people are trusted, which results later runs may read, and which of them a prompt shows."""

from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from kingdom.bus.port import Transaction
from kingdom.court.documents import FOLLOWUP, Assignment
from kingdom.court.package import GeneralPolicy
from kingdom.court.prompt import PromptResults, one_line
from kingdom.workflow.past_results import (
    PastResult,
    find_past_results,
    general_repo_key,
    general_subject_key,
    save_past_result,
)

# A prompt shows at most this many results for a placeholder.
SHOWN_MAX = 5
# The payload field with the person who caused an event, by source; "" means that its events name no person.
# Events of sources that are not listed can be created only by people who have access to the realm.
_PERSON_FIELDS = {"github": "actor", "slack": "user", "jira": ""}
_LABELED = "github.pr.labeled"
_SCHEDULE = "schedule-"
_TEXT_LENGTH_MAX = 1000
_NAME_LENGTH_MAX = 200


async def remember_result(
    transaction: Transaction, root: Assignment, result: Mapping[str, Any], policy: GeneralPolicy, at: datetime
) -> None:
    """Store the result of a root assignment for later runs, if a permitted person caused its event."""
    if is_by_permitted_person(root, policy):
        await save_past_result(transaction, _to_past_result(root, result, at))


async def load_prompt_results(transaction: Transaction, assignment: Assignment, repo: str) -> PromptResults:
    """Return the newest results of the same General about the subject and the repository of an assignment."""
    general, subject = assignment.target_general, subject_of(assignment)
    by_subject = general_subject_key(general, subject) if subject else None
    by_repo = general_repo_key(general, repo) if repo else None
    return PromptResults(
        same_subject=tuple(await find_past_results(transaction, by_subject, SHOWN_MAX)) if by_subject else (),
        same_repo=tuple(await find_past_results(transaction, by_repo, SHOWN_MAX)) if by_repo else (),
    )


def is_by_permitted_person(assignment: Assignment, policy: GeneralPolicy) -> bool:
    """Return whether a permitted person caused the event of an assignment. The glob `*` permits unknown people too."""
    if _source(assignment) not in _PERSON_FIELDS:
        return True
    person = _person(assignment).lower()
    # The bracket in the name of an app such as dependabot[bot] is not a wildcard.
    return any(fnmatchcase(person, glob.lower().replace("[", "[[]")) for glob in policy.result_people)


def stranger_of(assignment: Assignment, policy: GeneralPolicy) -> str:
    """Return who caused the GitHub event of an assignment if the policy does not name this person, otherwise "".

    Anyone can write on GitHub, but a label is an event only if a person with write permission set it. A round has
    the stranger of the run that opened its pull request, because its prompt contains the reports of that run.
    """
    if assignment.type == FOLLOWUP:
        return str(assignment.payload.get("stranger", ""))
    if _source(assignment) != "github" or assignment.type == _LABELED:
        return ""
    return "" if is_by_permitted_person(assignment, policy) else _person(assignment) or "an unknown person"


def subject_of(assignment: Assignment) -> str:
    """Return what an assignment is about: its pull request, issue, ticket or schedule, or "" if that is unknown."""
    if assignment.subject:
        return assignment.subject
    if assignment.event_id.startswith(_SCHEDULE):
        return assignment.event_id
    number, key = assignment.payload.get("number"), assignment.payload.get("key")
    if assignment.repo and isinstance(number, int | str):
        return f"{assignment.repo}#{number}"
    return key if isinstance(key, str) else ""


def _source(assignment: Assignment) -> str:
    return assignment.cause_id.removeprefix("evt-").partition("-")[0]


def _person(assignment: Assignment) -> str:
    field = _PERSON_FIELDS.get(_source(assignment), "actor")
    person = assignment.payload.get(field) if field else ""
    return person if isinstance(person, str) else ""


def _to_past_result(root: Assignment, result: Mapping[str, Any], at: datetime) -> PastResult:
    return PastResult(
        assignment_id=root.id,
        general=root.target_general,
        type=root.type,
        ended_at=at,
        status=str(result["status"]),
        summary=_shortened(result["summary"], _TEXT_LENGTH_MAX),
        repo=_shortened(root.repo or "", _NAME_LENGTH_MAX),
        subject=_shortened(subject_of(root), _NAME_LENGTH_MAX),
        person=_shortened(_person(root), _NAME_LENGTH_MAX),
        details=_shortened(result.get("details") or "", _TEXT_LENGTH_MAX),
    )


def _shortened(value: object, length_max: int) -> str:
    text = one_line(value)
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"

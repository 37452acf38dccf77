"""A General: the events it subscribes to, its schedules, and what it may do. Adding a General needs no code."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Meta

from kingdom.court.documents import Priority
from kingdom.workflow.model.resources.template import OverBudget, WorkflowTemplate

_Words = Annotated[str, Meta(min_length=1)]
NAME_PATTERN = "^gen-[a-z0-9]+(-[a-z0-9]+)*$"
_Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=60)]
_Count = Annotated[int, Meta(ge=1)]
# A login such as anna or dependabot[bot], or a team such as acme/backend.
_PERSON_OR_TEAM = r"^[A-Za-z0-9][A-Za-z0-9-]*(\[bot\]|/[A-Za-z0-9_.-]+)?$"
REVIEW, LABEL = "github.review", "github.label"
ReviewEvent = Literal["APPROVE", "REQUEST_CHANGES", "COMMENT"]
# An approval can cause a merge, so a policy must allow it explicitly.
_DEFAULT_REVIEW_EVENTS: tuple[ReviewEvent, ...] = ("COMMENT", "REQUEST_CHANGES")
# The files that CI and reviews depend on. A name without a slash matches in every folder.
PROTECTED_PATHS = (
    ".github/**",
    "CODEOWNERS",
    ".gitmodules",
    ".gitattributes",
    "action.yml",
    "action.yaml",
    ".gitlab-ci.yml",
    ".gitlab/**",
    ".circleci/**",
    ".buildkite/**",
    ".semaphore/**",
    ".teamcity/**",
    ".woodpecker*",
    ".travis.yml",
    ".cirrus.yml",
    ".drone.yml",
    "*appveyor.yml",
    "azure-pipelines*",
    "bitbucket-pipelines.yml",
    "Jenkinsfile*",
)
_CRON_FIELDS = 5
# A cron expression must match some date after this day. Any day would do.
_CRON_CHECK_DAY = datetime(2026, 1, 1)  # noqa: DTZ001 - cron expressions are checked without a time zone
# The event fields that a subscription can test, besides any field of the payload.
_EVENT_FIELDS = ("id", "type", "source", "repo", "priority", "created_at")
# A field of an event in a pattern, such as {payload.number}.
FIELD_IN_PATTERN = re.compile(r"\{([^{}]*)\}")
# A pattern matches a value that equals the pattern or, if the pattern is a list, one of its elements. Texts are globs.
FieldPattern = str | int | bool | list[str | int | bool]


class PackageSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a package file; an unknown field is an error."""


class Subscription(PackageSection, frozen=True, kw_only=True):
    """The events that a General wants.

    `where` has patterns by field path. `type`, `repos` and all texts in `where` are globs.
    The first General with a matching subscription gets an event. A General with `also` in its matching subscription
    gets the event too.
    """

    type: _Words
    repos: tuple[str, ...] = ()
    where: dict[str, FieldPattern] = {}
    also: bool = False
    priority: Priority | None = None
    # The subject of an event, such as "{repo}#{payload.number}". A waiting event is replaced by a newer one with
    # the same subject.
    supersedes: str = ""
    # How long an event is held back in case a newer event follows.
    debounce_seconds: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        # msgspec adds the position in the file to a ValueError.
        for path in (*self.where, *FIELD_IN_PATTERN.findall(self.supersedes)):
            if path not in _EVENT_FIELDS and not path.startswith("payload."):
                raise ValueError(
                    f"{path!r} is not a field of an event; available: payload.…, {', '.join(_EVENT_FIELDS)}"
                )

    def may_match_type(self, prefix: str) -> bool:
        """Return whether an event whose type starts with `prefix` can match."""
        literal = re.split(r"[*?[]", self.type, maxsplit=1)[0]
        return literal.startswith(prefix) or (literal != self.type and prefix.startswith(literal))


class Schedule(PackageSection, frozen=True, kw_only=True):
    """When a General starts work by itself. `catch_up` says how many missed times start work later."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
    cron: _Words
    task_type: _Words
    repo: str | None = None
    payload: dict[str, Any] = {}
    time_zone: str = ""
    catch_up: Literal["none", "once", "all"] = "once"

    def __post_init__(self) -> None:
        if len(self.cron.split()) != _CRON_FIELDS:
            raise ValueError(f"cron {self.cron!r} must have five fields, such as '0 9 * * 1-5'")
        try:
            first_match = next(CronSim(self.cron, _CRON_CHECK_DAY), None)
        except CronSimError as error:
            raise ValueError(f"cron {self.cron!r} is not valid, write it such as '0 9 * * 1-5': {error}") from error
        if first_match is None:
            raise ValueError(f"cron {self.cron!r} never matches a date")
        if self.time_zone:
            _refuse_unknown_zone(self.time_zone)


class PetitionRule(PackageSection, frozen=True, kw_only=True):
    """A kind of petition that agents may make, its allowed targets, and how many are allowed in one assignment.

    With `approval`, a person is asked first. A review must have one of the verdicts in `events`; APPROVE must be listed
    explicitly. Only labels that match a glob in `labels` are set or removed. Mentions and commands such as `/merge` do
    not reach bots unless a glob in `commands` allows them.
    """

    kind: _Words
    targets: tuple[str, ...] = ("*",)
    at_most: _Count = 1
    # The size of the whole body as JSON.
    body_bytes_max: _Count = 65_536
    # A petition that could not be performed within this time is dropped.
    expires_hours: Annotated[float, Meta(gt=0, le=8760)] = 168
    approval: bool = False
    events: tuple[ReviewEvent, ...] = _DEFAULT_REVIEW_EVENTS
    # A label can start CI or a merge, so there is no default.
    labels: tuple[_Words, ...] = ()
    commands: tuple[Annotated[str, Meta(pattern="^[/@].")], ...] = ()

    def __post_init__(self) -> None:
        if self.kind != REVIEW and self.events != _DEFAULT_REVIEW_EVENTS:
            raise ValueError(f"events are allowed for {REVIEW} only, and this rule is for {self.kind}")
        if (self.kind == LABEL) != bool(self.labels):
            raise ValueError(f"labels are needed for {LABEL} and allowed for it only, and this rule is for {self.kind}")


class GeneralPolicy(PackageSection, frozen=True, kw_only=True):
    """What a General may do without asking. A change applies to running work too."""

    retries: Annotated[int, Meta(ge=0)] = 2
    retry_after_seconds: Annotated[int, Meta(ge=0)] = 60
    # This amount is reserved for each assignment and limits its run. A person may then grant the same amount again.
    budget_usd: Annotated[float, Meta(gt=0)] | None = None
    over_budget: OverBudget = OverBudget.ASK
    concurrency: _Count | None = None
    petitions: tuple[PetitionRule, ...] = ()
    # A pull request or a push that changes one of these paths needs the approval of a person.
    protected_paths: tuple[_Words, ...] = PROTECTED_PATHS
    # A question without an answer gets the default answer after this time, or fails its assignment.
    ask_deadline_hours: Annotated[float, Meta(gt=0)] = 168
    ask_default: str = ""
    # The people who may answer: member ids in Slack, and names on the command line and the web. Empty means everyone.
    ask_people: tuple[str, ...] = ()
    # The people who are trusted: globs of GitHub logins and Slack member ids. Later runs may read the results of
    # their events. A run that a GitHub event of anyone else caused publishes commits only with approval.
    result_people: tuple[_Words, ...] = ()


class RoundLimit(PackageSection, frozen=True, kw_only=True):
    """How many rounds of work on a pull request may begin for one reason."""

    rounds: Annotated[int, Meta(ge=0)]


class FollowPolicy(PackageSection, frozen=True, kw_only=True):
    """How a General works on the pull requests that its agents open, until they are merged or closed."""

    # Whose reviews begin a round: GitHub logins, and teams such as acme/backend. Empty means everyone with write
    # permission, and no bot.
    people: tuple[Annotated[str, Meta(pattern=_PERSON_OR_TEAM)], ...] = ()
    # For all rounds of a pull request together.
    budget_usd: Annotated[float, Meta(gt=0)] = 20
    review: RoundLimit = RoundLimit(rounds=5)
    checks: RoundLimit = RoundLimit(rounds=3)
    conflicts: RoundLimit = RoundLimit(rounds=2)
    days: Annotated[float, Meta(gt=0, le=365)] = 14
    # How long a round waits for more news, so that several reviews are one round.
    debounce_seconds: Annotated[int, Meta(ge=0)] = 30
    # Text for the agent of each round, such as how to test a change. It is part of the package, so it is trusted.
    instructions: str = ""

    @property
    def teams(self) -> tuple[str, ...]:
        """Return the teams in `people`."""
        return tuple(each for each in self.people if "/" in each)


class General(PackageSection, frozen=True, kw_only=True):
    """The file `general.yaml` of a package. Generals with a lower `order` are offered an event first."""

    name: _Name
    description: _Words
    order: int = 100
    timeout_seconds: Annotated[int, Meta(ge=30)] = 1800
    subscribes: tuple[Subscription, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    default_repo: str | None = None
    channel: str = ""
    policy: GeneralPolicy = GeneralPolicy()
    # Without it, a pull request is not followed.
    follow: FollowPolicy | None = None
    # Additional files of the package that prompts may show.
    memory: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [schedule.name for schedule in self.schedules]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"several schedules are named {', '.join(duplicates)}: give each its own name")


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A General with the template of its runs. The prompts still contain placeholders."""

    general: General
    template: WorkflowTemplate
    directory: str

    @property
    def name(self) -> str:
        """Return the name of the General."""
        return self.general.name


def _refuse_unknown_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"time_zone {name!r} is unknown: write one such as Europe/Berlin or UTC") from error

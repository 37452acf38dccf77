"""What a General is: what it wants to hear of, when it acts by itself, and what it may do. Adding one needs no code."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Meta

from kingdom.court.documents import Priority
from kingdom.workflow.model.template import OverBudget, WorkflowTemplate

_Words = Annotated[str, Meta(min_length=1)]
NAME_PATTERN = "^gen-[a-z0-9]+(-[a-z0-9]+)*$"
_Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=60)]
_Count = Annotated[int, Meta(ge=1)]
REVIEW = "github.review"
ReviewEvent = Literal["APPROVE", "REQUEST_CHANGES", "COMMENT"]
# An approval can let a pull request be merged, so a policy has to name it.
_CAREFUL_EVENTS: tuple[ReviewEvent, ...] = ("COMMENT", "REQUEST_CHANGES")
_CRON_FIELDS = 5
# The calendar repeats itself, so any day will do to look whether a timetable ever comes true.
_SOME_DAY = datetime(2026, 1, 1)  # noqa: DTZ001 - a timetable is checked without a zone
# What a subscription can look at; the payload has whatever its source gave it.
_EVENT_FIELDS = ("id", "type", "source", "repo", "priority", "created_at")
_FIELD = re.compile(r"\{([^{}]*)\}")
# One of these patterns must fit, or the value itself; a bare value stands for a list of one.
FieldPattern = str | int | bool | list[str | int | bool]


class PackageSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that a package says; a field that nobody knows is an error."""


class Subscription(PackageSection, frozen=True, kw_only=True):
    """Which events a General wants; `type`, `repos` and texts under `where` are globs, `where` names fields by path.

    The first General with a fitting subscription gets an event, and so does each with one that says `also`.
    """

    type: _Words
    repos: tuple[str, ...] = ()
    where: dict[str, FieldPattern] = {}
    also: bool = False
    priority: Priority | None = None
    # What an event is about, such as "{repo}#{payload.number}"; a newer one takes the place of one that waits.
    supersedes: str = ""
    # So long a waiting event is held back for a newer one.
    debounce_seconds: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        # A ValueError is told with its place in the file.
        for path in (*self.where, *_FIELD.findall(self.supersedes)):
            if path not in _EVENT_FIELDS and not path.startswith("payload."):
                raise ValueError(f"{path!r} is no field of an event; there are: payload.…, {', '.join(_EVENT_FIELDS)}")

    def may_match_type(self, prefix: str) -> bool:
        """Tell whether an event whose type begins so can fit."""
        literal = re.split(r"[*?[]", self.type, maxsplit=1)[0]
        return literal.startswith(prefix) or (literal != self.type and prefix.startswith(literal))


class Schedule(PackageSection, frozen=True, kw_only=True):
    """When a General acts by itself; `catch_up` tells which of the times that nobody was there for still count."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
    cron: _Words
    task_type: _Words
    repo: str | None = None
    payload: dict[str, Any] = {}
    time_zone: str = ""
    catch_up: Literal["none", "once", "all"] = "once"

    def __post_init__(self) -> None:
        if len(self.cron.split()) != _CRON_FIELDS:
            raise ValueError(f"cron {self.cron!r} is no timetable of five fields such as '0 9 * * 1-5'")
        try:
            comes = next(CronSim(self.cron, _SOME_DAY), None)
        except CronSimError as error:
            raise ValueError(f"cron {self.cron!r} is no timetable such as '0 9 * * 1-5': {error}") from error
        if comes is None:
            raise ValueError(f"cron {self.cron!r} names a time that never comes")
        if self.time_zone:
            _refuse_unknown_zone(self.time_zone)


class PetitionRule(PackageSection, frozen=True, kw_only=True):
    """A kind of output that agents of a General may ask for, on which targets, and how often in one assignment.

    With `approval` a person is asked first. Of reviews only `events` count, and an approval must be named. Mentions and
    commands such as `/merge` reach no bot, unless `commands` has a glob for them.
    """

    kind: _Words
    targets: tuple[str, ...] = ("*",)
    at_most: _Count = 1
    # Of the whole body as JSON.
    body_bytes_max: _Count = 65_536
    # What could not be done so long after it was asked for is not done any more.
    expires_hours: Annotated[float, Meta(gt=0, le=8760)] = 168
    approval: bool = False
    events: tuple[ReviewEvent, ...] = _CAREFUL_EVENTS
    commands: tuple[Annotated[str, Meta(pattern="^[/@].")], ...] = ()

    def __post_init__(self) -> None:
        if self.kind != REVIEW and self.events != _CAREFUL_EVENTS:
            raise ValueError(f"events are those of a {REVIEW}, and this is a rule for {self.kind}")


class GeneralPolicy(PackageSection, frozen=True, kw_only=True):
    """What is done without asking; it stays live, so a change counts for runs that have begun too."""

    retries: Annotated[int, Meta(ge=0)] = 2
    retry_after_seconds: Annotated[int, Meta(ge=0)] = 60
    # What is set aside for an assignment and what its run may cost; then a person is asked for as much again.
    budget_usd: Annotated[float, Meta(gt=0)] | None = None
    over_budget: OverBudget = OverBudget.ASK
    concurrency: _Count | None = None
    petitions: tuple[PetitionRule, ...] = ()
    # After so long without an answer a question is answered by default, or fails its assignment.
    ask_deadline_hours: Annotated[float, Meta(gt=0)] = 168
    ask_default: str = ""
    # Who may answer, by the names of the place where they answer; nobody named means everybody there.
    ask_people: tuple[str, ...] = ()


class General(PackageSection, frozen=True, kw_only=True):
    """The file `general.yaml` of a package."""

    name: _Name
    description: _Words
    order: int = 100
    timeout_seconds: Annotated[int, Meta(ge=30)] = 1800
    subscribes: tuple[Subscription, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    default_repo: str | None = None
    channel: str = ""
    policy: GeneralPolicy = GeneralPolicy()
    # More files of the package that every prompt may show, beside those that its agents write.
    memory: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [schedule.name for schedule in self.schedules]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two schedules are named {', '.join(twins)}: give each a name of its own")


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A General with the template of its runs, in which prompts still have their placeholders."""

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
        raise ValueError(f"time_zone {name!r} is not known: write one such as Europe/Berlin or UTC") from error

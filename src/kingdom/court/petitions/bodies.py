"""The kinds of petitions: a typed body for each, its defaults, and the target that a policy checks."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from kingdom.court.package import REVIEW, ReviewEvent
from kingdom.errors import MalformedEvent
from kingdom.workflow.model.resources.git import REPOSITORY

_Repo = Annotated[str, Meta(pattern=rf"\A(|{REPOSITORY})\Z")]
_Number = Annotated[int, Meta(ge=0, le=2**31)]
_Key = Annotated[str, Meta(pattern=r"\A(|[A-Z][A-Z0-9_]*-[1-9][0-9]*)\Z", max_length=80)]
_Channel = Annotated[str, Meta(pattern=r"\A[#@]?[^\s#@,<>]*\Z", max_length=80)]
_Branch = Annotated[str, Meta(pattern=r"\A(|(?![/.-])(?!.*(\.\.|//|@\{|\.lock\Z))[^\s~^:?*\[\\]+)\Z", max_length=200)]
# Below the limits of GitHub (65,536) and Jira (32,767), so that our mark fits.
_GithubText = Annotated[str, Meta(max_length=60_000)]
_JiraText = Annotated[str, Meta(pattern=r"\S", max_length=30_000)]
_B = TypeVar("_B", bound="PetitionBody")


class AssignmentSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What an assignment is about, from our own data and not from a model."""

    repo: str = ""
    number: int = 0
    ticket: str = ""
    channel: str = ""


class PetitionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a petition."""

    # The fields that must have a value after defaults are filled in.
    needs: ClassVar[tuple[str, ...]] = ()

    @property
    def target(self) -> str:
        """Return the target that the globs of a policy are matched with."""
        raise NotImplementedError

    def filled(self, origin: AssignmentSubject) -> "PetitionBody":
        """Return the body with defaults from the assignment."""
        raise NotImplementedError

    def is_about(self, origin: AssignmentSubject) -> bool:
        """Return whether its target is what the assignment is about."""
        raise NotImplementedError


class _GithubBody(PetitionBody, frozen=True, kw_only=True):
    repo: _Repo = ""

    def filled(self, origin: AssignmentSubject) -> PetitionBody:
        own = self.repo.lower() in ("", origin.repo.lower())
        return msgspec.structs.replace(self, repo=origin.repo if own else self.repo)

    def is_about(self, origin: AssignmentSubject) -> bool:
        return self.repo == origin.repo


class _GithubThread(_GithubBody, frozen=True, kw_only=True):
    needs: ClassVar[tuple[str, ...]] = ("repo", "number")
    number: _Number = 0
    body: _GithubText = ""

    @property
    def target(self) -> str:
        return f"{self.repo}#{self.number}"

    def filled(self, origin: AssignmentSubject) -> PetitionBody:
        filled = super().filled(origin)
        # The number of the assignment means nothing in another repository.
        known = origin.number if super().is_about(origin) or not self.repo else 0
        return msgspec.structs.replace(filled, number=self.number or known)

    def is_about(self, origin: AssignmentSubject) -> bool:
        return super().is_about(origin) and origin.number in (0, self.number)


class GithubComment(_GithubThread, frozen=True, kw_only=True):
    """A comment on an issue or a pull request."""

    needs: ClassVar[tuple[str, ...]] = ("repo", "number", "body")


class GithubReview(_GithubThread, frozen=True, kw_only=True):
    """A review of a pull request. Only an approval needs no body."""

    event: ReviewEvent

    def __post_init__(self) -> None:
        if self.event != "APPROVE" and not self.body.strip():
            raise ValueError(f"a review with the event {self.event} needs a body")


class GithubPullRequest(_GithubBody, frozen=True, kw_only=True):
    """A pull request of a run's changes. `head` and `head_sha` are always set by us."""

    needs: ClassVar[tuple[str, ...]] = ("repo", "title")
    title: Annotated[str, Meta(max_length=250)] = ""
    body: _GithubText = ""
    base: _Branch = ""
    head: _Branch = ""
    head_sha: Annotated[str, Meta(pattern=r"\A[0-9a-f]*\Z", max_length=64)] = ""

    @property
    def target(self) -> str:
        """Return the target that the globs of a policy are matched with."""
        return self.repo

    def filled(self, origin: AssignmentSubject) -> PetitionBody:
        """Return the body with defaults from the assignment."""
        return msgspec.structs.replace(super().filled(origin), head="", head_sha="")


class _JiraBody(PetitionBody, frozen=True, kw_only=True):
    needs: ClassVar[tuple[str, ...]] = ("key",)
    key: _Key = ""

    @property
    def target(self) -> str:
        return self.key

    def filled(self, origin: AssignmentSubject) -> PetitionBody:
        return msgspec.structs.replace(self, key=self.key or origin.ticket)

    def is_about(self, origin: AssignmentSubject) -> bool:
        return self.key == origin.ticket


class JiraComment(_JiraBody, frozen=True, kw_only=True):
    """A comment on a ticket."""

    body: _JiraText


class JiraTransition(_JiraBody, frozen=True, kw_only=True):
    """A change of a ticket's status, by the name of the status."""

    to: Annotated[str, Meta(pattern=r"\S", max_length=100)]


class SlackMessage(PetitionBody, frozen=True, kw_only=True):
    """A message to people, which the Envoy sends."""

    channel: _Channel = ""
    text: Annotated[str, Meta(pattern=r"\S", max_length=12_000)]

    @property
    def target(self) -> str:
        """Return the target that the globs of a policy are matched with."""
        return self.channel

    def filled(self, origin: AssignmentSubject) -> PetitionBody:
        """Return the body with defaults from the assignment."""
        return msgspec.structs.replace(self, channel=self.channel or origin.channel)

    def is_about(self, origin: AssignmentSubject) -> bool:
        """Return whether its target is what the assignment is about."""
        return self.channel.removeprefix("#") == origin.channel.removeprefix("#")


KINDS: Mapping[str, type[PetitionBody]] = {
    "github.comment": GithubComment,
    REVIEW: GithubReview,
    "github.pull_request": GithubPullRequest,
    "jira.comment": JiraComment,
    "jira.transition": JiraTransition,
    "slack.message": SlackMessage,
}


def read_body(kind: str, raw: Mapping[str, Any], origin: AssignmentSubject) -> PetitionBody:
    """Return the body of a petition with defaults filled in, or raise MalformedEvent."""
    try:
        filled = msgspec.convert(raw, KINDS[kind]).filled(origin)
        # Validated again, since the data of the assignment comes from outside too.
        body = stored_body(KINDS[kind], msgspec.to_builtins(filled))
    except msgspec.ValidationError as error:
        raise MalformedEvent(f"this is not a valid {kind}: {error}") from error
    for name in body.needs:
        value = getattr(body, name)
        if not (value.strip() if isinstance(value, str) else value):
            raise MalformedEvent(
                f"this is not a valid {kind}: {name} is missing, and the assignment does not provide it"
            )
    return body


def stored_body(kind: type[_B], document: Mapping[str, Any]) -> _B:
    """Return a stored body, which was validated before."""
    return msgspec.convert(document, kind)

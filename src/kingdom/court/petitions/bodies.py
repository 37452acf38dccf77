"""What agents can ask for: a typed body for each kind, what we fill in, and the target that a policy judges."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from kingdom.court.package import REVIEW, ReviewEvent
from kingdom.errors import MalformedEvent
from kingdom.workflow.model.git import REPOSITORY

_Repo = Annotated[str, Meta(pattern=rf"\A(|{REPOSITORY})\Z")]
_Number = Annotated[int, Meta(ge=0, le=2**31)]
_Key = Annotated[str, Meta(pattern=r"\A(|[A-Z][A-Z0-9_]*-[1-9][0-9]*)\Z", max_length=80)]
_Channel = Annotated[str, Meta(pattern=r"\A[#@]?[^\s#@,<>]*\Z", max_length=80)]
_Branch = Annotated[str, Meta(pattern=r"\A(|(?![/.-])(?!.*(\.\.|//|@\{|\.lock\Z))[^\s~^:?*\[\\]+)\Z", max_length=200)]
# Below what GitHub (65,536) and Jira (32,767) take, so that our mark has room.
_GithubText = Annotated[str, Meta(max_length=60_000)]
_JiraText = Annotated[str, Meta(pattern=r"\S", max_length=30_000)]
_B = TypeVar("_B", bound="PetitionBody")


class AssignmentSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What an assignment is about, as we know it and not as a model says it."""

    repo: str = ""
    number: int = 0
    ticket: str = ""
    channel: str = ""


class PetitionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a petition of one kind says."""

    # Fields that must have a value once we have filled in what we know.
    needs: ClassVar[tuple[str, ...]] = ()

    @property
    def target(self) -> str:
        """Return what a policy's globs are compared with."""
        raise NotImplementedError

    def filled(self, origin: AssignmentSubject) -> "PetitionBody":
        """Return the body with what follows from the assignment."""
        raise NotImplementedError

    def is_about(self, origin: AssignmentSubject) -> bool:
        """Tell whether it stays with what the assignment is about."""
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
    """A review of a pull request with its verdict; only an approval needs no words."""

    event: ReviewEvent

    def __post_init__(self) -> None:
        if self.event != "APPROVE" and not self.body.strip():
            raise ValueError(f"a review of the kind {self.event} needs a body")


class GithubPullRequest(_GithubBody, frozen=True, kw_only=True):
    """A pull request of what the run has done; `head` and `head_sha` are always ours."""

    needs: ClassVar[tuple[str, ...]] = ("repo", "title")
    title: Annotated[str, Meta(max_length=250)] = ""
    body: _GithubText = ""
    base: _Branch = ""
    head: _Branch = ""
    head_sha: Annotated[str, Meta(pattern=r"\A[0-9a-f]*\Z", max_length=64)] = ""

    @property
    def target(self) -> str:
        """Return what a policy's globs are compared with."""
        return self.repo

    def filled(self, origin: AssignmentSubject) -> PetitionBody:
        """Return the body with what follows from the assignment."""
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
    """A comment below a ticket."""

    body: _JiraText


class JiraTransition(_JiraBody, frozen=True, kw_only=True):
    """A ticket shall get another status, by its name."""

    to: Annotated[str, Meta(pattern=r"\S", max_length=100)]


class SlackMessage(PetitionBody, frozen=True, kw_only=True):
    """A message to people, which the Envoy sends."""

    channel: _Channel = ""
    text: Annotated[str, Meta(pattern=r"\S", max_length=12_000)]

    @property
    def target(self) -> str:
        """Return what a policy's globs are compared with."""
        return self.channel

    def filled(self, origin: AssignmentSubject) -> PetitionBody:
        """Return the body with what follows from the assignment."""
        return msgspec.structs.replace(self, channel=self.channel or origin.channel)

    def is_about(self, origin: AssignmentSubject) -> bool:
        """Tell whether it stays with what the assignment is about."""
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
    """Return what an agent asks for, with what we know filled in, or say what is wrong with it."""
    try:
        filled = msgspec.convert(raw, KINDS[kind]).filled(origin)
        # What an assignment is about was written outside too.
        body = stored_body(KINDS[kind], msgspec.to_builtins(filled))
    except msgspec.ValidationError as error:
        raise MalformedEvent(f"this is no {kind}: {error}") from error
    for name in body.needs:
        value = getattr(body, name)
        if not (value.strip() if isinstance(value, str) else value):
            raise MalformedEvent(f"this is no {kind}: {name} is missing and does not follow from the assignment")
    return body


def stored_body(kind: type[_B], document: Mapping[str, Any]) -> _B:
    """Return a body that was read and filled before."""
    return msgspec.convert(document, kind)

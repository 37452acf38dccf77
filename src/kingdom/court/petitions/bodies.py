"""The kinds of petitions: a typed body for each, its defaults, and the target that a policy checks."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kingdom.court.package import LABEL, REVIEW, ReviewEvent
from kingdom.errors import MalformedEvent
from kingdom.workflow.model.resources.git import REPOSITORY

PULL_REQUEST, PUSH, AUTO_MERGE = "github.pull_request", "github.push", "github.auto_merge"
# The petitions about one commit, which the court sets. An approval holds for this commit only.
WITH_COMMIT = (PULL_REQUEST, PUSH, AUTO_MERGE)
_Repo = Annotated[str, Meta(pattern=rf"\A(|{REPOSITORY})\Z")]
_Number = Annotated[int, Meta(ge=0, le=2**31)]
_Key = Annotated[str, Meta(pattern=r"\A(|[A-Z][A-Z0-9_]*-[1-9][0-9]*)\Z", max_length=80)]
_Channel = Annotated[str, Meta(pattern=r"\A[#@]?[^\s#@,<>]*\Z", max_length=80)]
_Branch = Annotated[str, Meta(pattern=r"\A(|(?![/.-])(?!.*(\.\.|//|@\{|\.lock\Z))[^\s~^:?*\[\\]+)\Z", max_length=200)]
_Commit = Annotated[str, Meta(pattern=r"\A[0-9a-f]*\Z", max_length=64)]
# These lengths leave room for the mark that the court appends: GitHub allows 65,536 characters, and Jira 32,767.
# GitHub allows 50 characters in the name of a label.
_Label = Annotated[str, Meta(pattern=r"\A\S[^\x00-\x1f,]*\Z", max_length=50)]
_GithubText = Annotated[str, Meta(max_length=60_000)]
# The limit of a review with all its line comments, since each of them can move into the body.
_REVIEW_TEXT_MAX = 60_000
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
    # Whether equal requests of different Works are different petitions.
    is_per_work: ClassVar[bool] = False

    @property
    def target(self) -> str:
        """Return the target that the globs of a policy are matched with."""
        raise NotImplementedError

    def with_defaults(self, subject: AssignmentSubject) -> "PetitionBody":
        """Return the body with defaults from the assignment."""
        raise NotImplementedError

    def is_about(self, subject: AssignmentSubject) -> bool:
        """Return whether its target is what the assignment is about."""
        raise NotImplementedError


class _GithubBody(PetitionBody, frozen=True, kw_only=True):
    repo: _Repo = ""

    def with_defaults(self, subject: AssignmentSubject) -> PetitionBody:
        is_same = self.repo.lower() in ("", subject.repo.lower())
        return msgspec.structs.replace(self, repo=subject.repo if is_same else self.repo)

    def is_about(self, subject: AssignmentSubject) -> bool:
        return self.repo == subject.repo


class _GithubNumbered(_GithubBody, frozen=True, kw_only=True):
    needs: ClassVar[tuple[str, ...]] = ("repo", "number")
    number: _Number = 0

    @property
    def target(self) -> str:
        return f"{self.repo}#{self.number}"

    def with_defaults(self, subject: AssignmentSubject) -> PetitionBody:
        completed = super().with_defaults(subject)
        # The issue number of the assignment is not valid in another repository.
        known = subject.number if super().is_about(subject) or not self.repo else 0
        return msgspec.structs.replace(completed, number=self.number or known)

    def is_about(self, subject: AssignmentSubject) -> bool:
        return super().is_about(subject) and subject.number in (0, self.number)


class _GithubThread(_GithubNumbered, frozen=True, kw_only=True):
    body: _GithubText = ""


class GithubComment(_GithubThread, frozen=True, kw_only=True):
    """A comment on an issue or a pull request."""

    needs: ClassVar[tuple[str, ...]] = ("repo", "number", "body")


class GithubSummary(_GithubThread, frozen=True, kw_only=True):
    """The one comment of Kingdom on an issue or a pull request that is edited instead of repeated."""

    needs: ClassVar[tuple[str, ...]] = ("repo", "number", "body")


class LineComment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comment on a line of the diff. The side LEFT has the lines before the change, RIGHT those after it."""

    path: Annotated[str, Meta(pattern=r"\A[^/\x00-\x1f`][^\x00-\x1f`]*\Z", max_length=500)]
    line: Annotated[int, Meta(ge=1, le=10**7)]
    side: Literal["LEFT", "RIGHT"] = "RIGHT"
    body: Annotated[str, Meta(pattern=r"\S", max_length=8_000)]


class GithubReview(_GithubThread, frozen=True, kw_only=True):
    """A review of a pull request. Only an approval, or a review with line comments, may have an empty body."""

    event: ReviewEvent
    # Unset by default: the id of a petition is a hash of its body, and a review without comments keeps its earlier id.
    comments: Annotated[tuple[LineComment, ...], Meta(max_length=50)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.event != "APPROVE" and not self.body.strip() and not self.comments:
            raise ValueError(f"a review with the event {self.event} needs a body")
        if self.comments and self._text_length > _REVIEW_TEXT_MAX:
            raise ValueError(f"a review with line comments has at most {_REVIEW_TEXT_MAX} characters")

    @property
    def _text_length(self) -> int:
        """Return the length of its text if every line comment moves into it."""
        return len(self.body) + sum(len(each.path) + len(each.body) + 30 for each in self.comments or ())


class GithubPullRequest(_GithubBody, frozen=True, kw_only=True):
    """A pull request of a run's changes. The court sets `head` and `head_sha`, never the agent."""

    needs: ClassVar[tuple[str, ...]] = ("repo", "title")
    title: Annotated[str, Meta(max_length=250)] = ""
    body: _GithubText = ""
    base: _Branch = ""
    head: _Branch = ""
    head_sha: _Commit = ""

    @property
    def target(self) -> str:
        """Return the target that the globs of a policy are matched with."""
        return self.repo

    def with_defaults(self, subject: AssignmentSubject) -> PetitionBody:
        """Return the body with defaults from the assignment."""
        return msgspec.structs.replace(super().with_defaults(subject), head="", head_sha="")


class GithubReply(_GithubThread, frozen=True, kw_only=True):
    """A reply to a review thread. Only a thread that we opened can be resolved with it.

    `thread` is the id of the thread, or the number of its first comment.
    """

    needs: ClassVar[tuple[str, ...]] = ("repo", "number", "thread", "body")
    thread: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_=-]+\Z", max_length=200)]
    resolve: bool = False


class _GithubOwnPull(_GithubNumbered, frozen=True, kw_only=True):
    """An action on a pull request that we opened."""

    is_per_work: ClassVar[bool] = True
    head_sha: _Commit = ""

    def is_about(self, subject: AssignmentSubject) -> bool:
        """Return whether it is in the repository of the assignment, since the pull request is our own."""
        return self.repo == subject.repo


class GithubPush(_GithubOwnPull, frozen=True, kw_only=True):
    """New commits of a run for a pull request that we opened.

    The court sets `branch`, `before` and `head_sha`, never the agent. `before` is the head that we last saw. `message`
    is for people who approve the push.
    """

    message: Annotated[str, Meta(max_length=2_000)] = ""
    branch: _Branch = ""
    before: _Commit = ""

    def with_defaults(self, subject: AssignmentSubject) -> PetitionBody:
        """Return the body with defaults from the assignment."""
        return msgspec.structs.replace(super().with_defaults(subject), branch="", before="", head_sha="")


class GithubAutoMerge(_GithubOwnPull, frozen=True, kw_only=True):
    """The automatic merge of a pull request that we opened, once it meets its requirements.

    The court sets `head_sha`, never the agent: GitHub switches the merge on only if this commit is the head.
    """

    method: Literal["MERGE", "SQUASH", "REBASE"] = "MERGE"

    def with_defaults(self, subject: AssignmentSubject) -> PetitionBody:
        """Return the body with defaults from the assignment."""
        return msgspec.structs.replace(super().with_defaults(subject), head_sha="")


class GithubLabel(_GithubNumbered, frozen=True, kw_only=True):
    """Labels that an issue or a pull request gets or loses."""

    labels: Annotated[tuple[_Label, ...], Meta(max_length=20)] = ()
    remove: Annotated[tuple[_Label, ...], Meta(max_length=20)] = ()

    def __post_init__(self) -> None:
        names = [name.lower() for name in (*self.labels, *self.remove)]
        if not names:
            raise ValueError("it names no label: set labels or remove")
        if len(set(names)) < len(names):
            raise ValueError("it names a label twice")


class GithubIssue(_GithubBody, frozen=True, kw_only=True):
    """A new issue."""

    needs: ClassVar[tuple[str, ...]] = ("repo", "title")
    title: Annotated[str, Meta(max_length=250)] = ""
    body: _GithubText = ""

    @property
    def target(self) -> str:
        """Return the target that the globs of a policy are matched with."""
        return self.repo


class _JiraBody(PetitionBody, frozen=True, kw_only=True):
    needs: ClassVar[tuple[str, ...]] = ("key",)
    key: _Key = ""

    @property
    def target(self) -> str:
        return self.key

    def with_defaults(self, subject: AssignmentSubject) -> PetitionBody:
        return msgspec.structs.replace(self, key=self.key or subject.ticket)

    def is_about(self, subject: AssignmentSubject) -> bool:
        return self.key == subject.ticket


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

    def with_defaults(self, subject: AssignmentSubject) -> PetitionBody:
        """Return the body with defaults from the assignment."""
        return msgspec.structs.replace(self, channel=self.channel or subject.channel)

    def is_about(self, subject: AssignmentSubject) -> bool:
        """Return whether its target is what the assignment is about."""
        return self.channel.removeprefix("#") == subject.channel.removeprefix("#")


KINDS: Mapping[str, type[PetitionBody]] = {
    "github.comment": GithubComment,
    "github.summary": GithubSummary,
    REVIEW: GithubReview,
    "github.reply": GithubReply,
    PULL_REQUEST: GithubPullRequest,
    PUSH: GithubPush,
    AUTO_MERGE: GithubAutoMerge,
    LABEL: GithubLabel,
    "github.issue": GithubIssue,
    "jira.comment": JiraComment,
    "jira.transition": JiraTransition,
    "slack.message": SlackMessage,
}


def read_body(kind: str, raw: Mapping[str, Any], subject: AssignmentSubject) -> PetitionBody:
    """Return the body of a petition with defaults filled in, or raise MalformedEvent."""
    try:
        completed = msgspec.convert(raw, KINDS[kind]).with_defaults(subject)
        # The body is validated again, because the defaults from the assignment are untrusted too.
        body = stored_body(KINDS[kind], msgspec.to_builtins(completed))
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

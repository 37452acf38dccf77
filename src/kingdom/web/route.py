"""What a route is, and the request that its function gets."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from kingdom.access.acts import Act
from kingdom.access.rights import Right, Visitor
from kingdom.access.settings import WebSettings
from kingdom.bootstrap import generals_directory_of
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.clock import utc_now
from kingdom.court.king.context import KingContext
from kingdom.court.package_files import LoadedPackages, load_packages
from kingdom.realm import Realm
from kingdom.settings import Settings
from kingdom.storage.run_texts import RunTexts

_T = TypeVar("_T")
PAGE_MAX = 200
_DIFFS_AT_ONCE = 2
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Text = Annotated[str, Meta(max_length=20_000)]
Words = Annotated[str, Meta(min_length=1, max_length=2_000)]


class Audience(StrEnum):
    """Who may use a route that needs no right."""

    EVERYONE = "everyone"
    SIGNED_IN = "signed in"


class Page(msgspec.Struct, Generic[_T], frozen=True, kw_only=True):
    """A part of a list. `next` is the value of `after` for the next part; it is null at the end of the list."""

    items: list[_T]
    next: str | None = None


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How much of a list to return. `after` is `next` of the previous part."""

    limit: Limit = 50
    after: str = ""


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """A document without content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebContext:
    """Everything that the functions of routes share."""

    bus: Bus
    operations: Operations
    # The copies of transcripts and diffs, if the store has any.
    texts: RunTexts | None
    settings: Settings
    realm: Realm
    web: WebSettings
    directory: Path
    clock: Callable[[], datetime] = utc_now
    # A diff can take a process of git and megabytes, so only a few are made at the same time.
    diff_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_DIFFS_AT_ONCE))

    @property
    def generals_directory(self) -> Path:
        """Return the directory of the Generals."""
        return generals_directory_of(self.settings, self.realm)

    def load_packages(self) -> LoadedPackages:
        """Read the Generals. They can change at any time."""
        return load_packages(self.generals_directory, accepts_strangers=self.realm.sentinel.accepts_strangers)

    def king_context(self) -> KingContext:
        """Return the context of the King's decisions."""
        loaded = self.load_packages()
        return KingContext(packages=lambda: loaded.packages, zone=self.realm.zone, settings=self.realm.king)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One request: who sent it, and its decoded parts."""

    context: WebContext
    visitor: Visitor
    request: web.Request
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def act(self, verb: str, target: str, kind: str) -> Act:
        """Return the act that this request asks for, with its idempotency key."""
        return Act(
            visitor=self.visitor,
            verb=verb,
            target=target,
            target_kind=kind,
            request=self.raw,
            key=self.request.headers.get("Idempotency-Key", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """A method and a path, who may use them, the function behind them, and the types of its input and result."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    right: Right | Audience
    run: Callable[[ApiCall], Awaitable[Any]]
    result: Any
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    # The type of the content of a successful response.
    media: str = "application/json"
    # Whether the function honors the header Idempotency-Key.
    takes_key: bool = False

    @property
    def name(self) -> str:
        """Return the name of the route for programs."""
        return self.run.__name__

    @property
    def summary(self) -> str:
        """Return what the route does: the first paragraph of the docstring of its function."""
        return " ".join((self.run.__doc__ or "").split("\n\n")[0].split())


def part_of(items: Sequence[_T], key: Callable[[_T], str], query: PageQuery) -> Page[_T]:
    """Return a part of a short list that is already in memory, in the order of its keys."""
    rest = sorted((each for each in items if key(each) > query.after), key=key)
    shown = rest[: query.limit]
    return Page(items=shown, next=key(shown[-1]) if len(rest) > query.limit else None)


def page_of(kind: Any) -> Any:
    """Return the type of a page whose items have the given type."""
    return Page[kind]

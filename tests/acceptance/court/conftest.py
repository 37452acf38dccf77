"""One court per backend for all tests here. The first test that needs a story runs it; later tests read its result."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bench.postgres import PrivateCluster
from kingdom.bus import LogEntry
from tests.acceptance.court import stories, trouble
from tests.acceptance.court.court import Court
from tests.acceptance.court.opening import opened_court


@pytest.fixture(scope="package", params=["files", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the store; empty for files, which are in the directory of the court."""
    with _database(request, "court") if request.param == "postgres" else nullcontext("") as url:
        yield url


@pytest.fixture(scope="package")
def second_url(url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of another store of the same kind."""
    with _database(request, "second_court") if url else nullcontext("") as second:
        yield second


@pytest.fixture(scope="package")
def followed_url(url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the store of the court whose pull requests are followed."""
    with _database(request, "followed_court") if url else nullcontext("") as followed:
        yield followed


@pytest.fixture(scope="package")
def claude_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the store of the court with real soldiers. One kind of store is enough for them."""
    with _database(request, "claude_court") as url:
        yield url


@pytest.fixture(scope="package")
def court_directory(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("court-postgres" if url else "court-files")


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def court(url: str, court_directory: Path) -> AsyncIterator[Court]:
    async with opened_court(court_directory, url) as court:
        yield court


@contextmanager
def _database(request: pytest.FixtureRequest, name: str) -> Iterator[str]:
    cluster: PrivateCluster = request.getfixturevalue("cluster")
    yield cluster.create_database(name, template=request.getfixturevalue("migrated_template"))
    cluster.drop_database(name)


def _story(happens: Callable[[Court], Awaitable[Any]]) -> Any:
    async def story(court: Court) -> Any:
        return await happens(court)

    return pytest_asyncio.fixture(scope="package", loop_scope="session", name=happens.__name__)(story)


review_by_hook = _story(stories.review_by_hook)
review_by_poll = _story(stories.review_by_poll)
ticket = _story(stories.ticket)
question = _story(stories.question)
schedule = _story(stories.schedule)
failure = _story(stories.failure)
refusal = _story(stories.refusal)
oversleeping = _story(stories.oversleeping)
unrouted = _story(stories.unrouted)
superseded = _story(stories.superseded)
orphaned = _story(trouble.orphaned)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def killed(court: Court, review_by_hook: tuple[stories.Story, int]) -> int:
    story, _ = review_by_hook
    return await trouble.killed(court, story.task)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def up_and_down(court_directory: Path, second_url: str) -> list[LogEntry]:
    return await trouble.up_and_down(court_directory.with_name(f"{court_directory.name}-up"), second_url)

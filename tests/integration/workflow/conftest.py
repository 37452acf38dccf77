"""Every test of the engine runs once per registered backend."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.integration.workflow.history import History, record
from tests.integration.workflow.scene import Scene, opened


@pytest.fixture
async def scene(backend: BackendUnderTest) -> AsyncIterator[Scene]:
    """An engine running, two known repositories, no host."""
    async with opened(backend) as scene:
        await scene.register_repositories("git-app", "git-lib")
        yield scene


@pytest.fixture(scope="session", params=BACKENDS)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    """What happened to a few runs, recorded once per backend."""
    kind = BACKENDS[request.param]
    if kind.place_fixture == "dsn":
        ready = request.getfixturevalue("migrated_template")
        place = request.getfixturevalue("cluster").create_database("workflow_history", template=ready)
    else:
        place = str(tmp_path_factory.mktemp("history") / "realm")
    return asyncio.run(record(kind(place)))

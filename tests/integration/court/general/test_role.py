"""The role of the Generals serves the packages that it finds while it runs."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kingdom.bus import Bus
from kingdom.bus.metrics import WorkerMetrics
from kingdom.court.live_packages import LivePackages
from kingdom.court.package import Package
from kingdom.realm import Realm
from kingdom.roles import declare_application, general
from kingdom.roles.context import RoleContext
from kingdom.settings import Settings
from tests.contract.backends import BackendUnderTest
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def bus(backend: BackendUnderTest) -> AsyncIterator[Bus]:
    application = declare_application(Realm())
    async with backend.open(application.topology, application.kinds) as bus:
        yield bus


class UnreadablePackages(LivePackages):
    """A folder that a full table of open files makes unreadable for one check."""

    checks = 0

    def by_name(self) -> Mapping[str, Package]:
        self.checks += 1
        if self.checks == 2:
            raise OSError(24, "Too many open files")
        return super().by_name()


async def test_new_generals_are_noticed_after_a_check_that_failed(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(general, "_PACKAGES_CHECK_SECONDS", 0.01)
    packages = UnreadablePackages(tmp_path / "generals")
    async with AsyncExitStack() as stack:
        role = general.build(
            RoleContext(
                bus=bus,
                settings=Settings.read(database_url=f"file:{tmp_path / 'realm'}"),
                realm=Realm(),
                packages=packages,
                metrics=WorkerMetrics(CollectorRegistry()),
                directory=tmp_path,
                stack=stack,
            )
        )
        for background in role.background:
            background.close()
        (part,) = role.runnables
        running = asyncio.create_task(part.run())

        async def is_checked_again() -> bool:
            return packages.checks > 2

        try:
            await eventually(is_checked_again)
        finally:
            part.stop()
            await asyncio.wait_for(running, PATIENCE_SECONDS)

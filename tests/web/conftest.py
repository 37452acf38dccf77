"""A browser per test, and a site with the small realm."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.contract.backends import BackendUnderTest
from tests.integration.web.court_scene import fill_court, generals_of, install_generals
from tests.integration.web.scene import fill_realm
from tests.integration.web.site import Site, serving
from tests.patience import PATIENCE_SECONDS
from tests.web.browser import chromium

expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        await fill_realm(site.bus)
        await fill_court(site.bus, site.operations)
        install_generals(generals_of(backend, tmp_path))
        yield site

from pathlib import Path

import pytest

from tests.acceptance.front import Front, Typist, furnish
from tests.acceptance.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, dsn: str) -> Terminal:
    return Terminal(tmp_path, dsn)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    """A read-only store with one item of each kind."""
    return furnish(tmp_path_factory.mktemp("front") / "realm")


@pytest.fixture
def types(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typist:
    """A terminal in an empty directory without a configured store."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "KINGDOM_DATABASE_URL", "KINGDOM_SCHEMA", "KINGDOM_APP", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Typist(capsys, monkeypatch)


@pytest.fixture
def clerk(types: Typist, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Typist:
    """A terminal with a database."""
    monkeypatch.setenv("KINGDOM_DATABASE_URL", dsn)
    monkeypatch.setenv("KINGDOM_ACTOR", "tester")
    return types


@pytest.fixture
def there(front: Front, types: Typist, monkeypatch: pytest.MonkeyPatch) -> Typist:
    """A terminal with the store."""
    monkeypatch.setenv("KINGDOM_DATABASE_URL", front.url)
    return types

from pathlib import Path

import pytest

from tests.acceptance.sample_store import InProcessCli, SampleStore, make_sample_store
from tests.acceptance.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, dsn: str) -> Terminal:
    return Terminal(tmp_path, dsn)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleStore:
    """A read-only store with one item of each kind."""
    return make_sample_store(tmp_path_factory.mktemp("front") / "realm")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InProcessCli:
    """Commands in an empty directory without a configured store."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "KINGDOM_DATABASE_URL", "KINGDOM_SCHEMA", "KINGDOM_APP", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return InProcessCli(capsys, monkeypatch)


@pytest.fixture
def cli_on_database(cli: InProcessCli, dsn: str, monkeypatch: pytest.MonkeyPatch) -> InProcessCli:
    """Commands on a new database."""
    monkeypatch.setenv("KINGDOM_DATABASE_URL", dsn)
    monkeypatch.setenv("KINGDOM_ACTOR", "tester")
    return cli


@pytest.fixture
def cli_on_sample(sample: SampleStore, cli: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> InProcessCli:
    """Commands on the sample store."""
    monkeypatch.setenv("KINGDOM_DATABASE_URL", sample.url)
    return cli

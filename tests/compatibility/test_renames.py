"""Show that the checks of the samples can fail: each rename below would break the stores of users."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES
from kingdom.backends.postgres import queries
from kingdom.bus.record import read_document
from kingdom.errors import Misconfigured, Unreadable
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.workflow import Workflow
from tests.compatibility import test_samples as checks
from tests.compatibility.sample import FOLDER, Sample
from tests.contract.backends import FilesBackend, PostgresBackend

# One version is enough, because all have the names that are renamed here.
pytestmark = pytest.mark.parametrize("version", [FOLDER / "1e8764f"], indirect=True, ids=["1e8764f"])


class RenamedWorkflow(Workflow, kw_only=True):
    """A run whose Works have another name in its document."""

    works: list[Work] = msgspec.field(name="steps")


@pytest.fixture
def renamed_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each stored run as RenamedWorkflow."""
    monkeypatch.setattr(Workflow, "read", lambda document: read_document(document, RenamedWorkflow))


@pytest.fixture
def renamed_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename the directory of dead letters in a store of files."""
    monkeypatch.setitem(STATUS_DIRECTORIES, "DEAD", "failed")


@pytest.fixture
def renamed_column(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rename a column in every statement, without a migration."""
    in_schema = queries.in_schema

    def with_another_column(sql: str, schema: str) -> Any:
        return in_schema(sql.replace("partition_key", "order_key"), schema)

    monkeypatch.setattr(queries, "in_schema", with_another_column)
    queries.load_queries.cache_clear()
    yield
    queries.load_queries.cache_clear()


@pytest.mark.usefixtures("renamed_field")
async def test_the_samples_refuse_a_renamed_field_of_a_document(sample: Sample) -> None:
    with pytest.raises(Unreadable, match=r"cannot be read by this version: .*`steps`"):
        await checks.test_a_paused_run_continues_elsewhere_after_its_checkpoint(sample)


async def test_the_samples_refuse_a_renamed_part_of_the_store(sample: Sample, request: pytest.FixtureRequest) -> None:
    rename, error, match = {
        FilesBackend.name: ("renamed_directory", AssertionError, "host.dead"),
        PostgresBackend.name: ("renamed_column", Misconfigured, 'column "order_key" does not exist'),
    }[sample.backend.name]
    request.getfixturevalue(rename)
    with pytest.raises(error, match=match):
        await checks.test_the_backlog_is_handled_in_its_order_and_dead_letters_once_they_are_redriven(sample)

"""The layout of a store of files: the files of the source documents, documented additions, and nothing else."""

import re
from pathlib import Path

import pytest

from tests.acceptance.court.court import Court, wait
from tests.acceptance.court.stories import Asked, Superseded

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("url", ["files"], indirect=True, scope="package"),
]

_EVENT, _TASK, _MESSAGE = r"evt-[a-z]+-[\w.:+-]+", r"task-\d{8}-\d{3,}", r"msg-\d{8}-\d{3,}"
_SOLDIER, _RUN, _NAME = r"soldier-\d+-\d+", rf"wf-{_TASK}", r"[\w%.@-]+"
_SPACE = rf"workspace/gen-[\w-]+/{_RUN}-w\d+-space\d+"

# The directories of the source documents whose files exist only for moments.
DIRECTORIES = ("queue/tasks/pending", "queue/messages/pending")
# Every file of the source documents.
DOCUMENTED = (
    rf"queue/events/pending/{_EVENT}\.json",
    rf"queue/events/dispatched/{_EVENT}\.json",
    rf"queue/events/completed/{_EVENT}\.json",
    rf"queue/tasks/in_progress/{_TASK}\.json",
    rf"queue/tasks/completed/{_TASK}\.json",
    rf"queue/messages/sent/{_MESSAGE}\.json",
    rf"state/results/{_TASK}\.json",
    rf"state/results/{_TASK}-raw\.json",
    rf"state/results/{_TASK}-soldier-id",
    rf"state/results/{_TASK}-session-id",
    rf"state/prompts/{_TASK}\.md",
    r"logs/system\.log",
    r"logs/system\.log\.old",
    r"logs/events\.log",
    r"logs/events-\d{8}\.log",
    r"logs/tasks\.log",
    r"logs/tasks\.log\.old",
    r"logs/metrics\.log",
    r"logs/metrics\.log\.old",
    rf"logs/sessions/{_SOLDIER}\.json",
    rf"logs/sessions/{_SOLDIER}\.err",
    r"logs/analysis/stats\.json",
    r"state/envoy/thread-mappings\.json",
    r"state/envoy/awaiting-responses\.json",
    r"state/envoy/report-sent\.json",
    r"state/envoy/heartbeat",
    r"state/king/heartbeat",
    r"state/king/task-seq",
    r"state/king/msg-seq",
    r"state/king/schedule-sent\.json",
    rf"state/sentinel/seen/{_EVENT}",
    r"state/sessions\.json",
    # One work space per Work, since soldiers of one General work at the same time.
    rf"{_SPACE}/CLAUDE\.md",
    rf"{_SPACE}/\.kingdom-task\.json",
)
# Additions to the source documents: temporary files, the bus, further records, and the files of soldiers.
OWN = (
    rf"queue/(tasks/pending/{_TASK}|messages/pending/{_MESSAGE})\.json",
    r"bus/(lock|host\.json|kinds\.json)",
    rf"bus/(journal|leases|paused|wake|tmp)(/{_NAME})?",
    rf"bus/once(/{_NAME}(/{_NAME})?)?",
    rf"bus/streams(/{_NAME}(/(pending|processing|dead|done|done-ids)(/{_NAME})?)?)?",
    rf"state/(asks|documents|effects|followups|gits|hosts|past-results|petitions|verdicts|workflows)/[a-z-]+(/{_NAME}\.json)?",
    rf"state/soldiers/commands/(accepted|answered)(/{_NAME}\.json)?",
    rf"state/quotas/{_NAME}\.json",
    r"state/(chamberlain|envoy|general|herald|king|sentinel|soldiers|gen-[\w-]+)/heartbeat",
    r"state/chamberlain/(budget|clean-ups|outages|reports)\.json",
    r"state/health/current\.json",
    r"state/court/processes\.json",
    rf"state/throughput(/{_NAME}\.json)?",
    rf"state/king/(waiting|waited|newest|newest-ended|bills|bills-ended|costs|schedules|schedules-stopped)(/{_NAME}\.json)?",
    rf"state/sentinel/(cursors|looks|places|tickets)(/ended)?(/{_NAME}\.json)?",
    r"host\.(lock|id)",
    rf"repositories/{_NAME}\.(lock|git(/.+)?)",
    rf"{_SPACE}(/.+)?",
    rf"runs/{_RUN}(/(trees|reports|home|outfit|gates)(/.+)?|/ports)?",
)


@pytest.fixture
def seen(
    court: Court,
    review_by_hook: object,
    question: Asked,
    schedule: object,
    failure: object,
    superseded: Superseded,
) -> set[str]:
    """Every path that existed during the stories or exists now."""
    assert all((review_by_hook, schedule, failure))
    return {*question.paths, *superseded.paths, *court.paths()}


@pytest.mark.parametrize("pattern", DOCUMENTED)
async def test_files_named_in_the_documents_are_in_their_places(court: Court, seen: set[str], pattern: str) -> None:
    async def there() -> bool:
        # A log is rotated only when it is full, and a report is written only when it is sent.
        return any(re.fullmatch(pattern, path) for path in (*seen, *court.paths()))

    await wait(there, pattern)


async def test_directories_of_the_documents_are_there_while_they_are_empty(seen: set[str]) -> None:
    assert set(DIRECTORIES) <= seen


async def test_the_realm_contains_nothing_else(seen: set[str]) -> None:
    known = [re.compile(pattern) for pattern in (*DOCUMENTED, *OWN)]
    files = {path for path in seen if any(pattern.fullmatch(path) for pattern in known)}
    folders = {str(parent) for path in (*files, *(f"{each}/any" for each in DIRECTORIES)) for parent in _above(path)}
    assert sorted(seen - files - folders) == []


async def test_no_unfinished_file_remains(court: Court, seen: set[str]) -> None:
    assert seen

    async def tidy() -> bool:
        realm = court.processes.realm
        found = [path for path in court.paths() if _is_unfinished(Path(path).name) and (realm / path).is_file()]
        return not found and not any((realm / "bus" / "tmp").iterdir())

    await wait(tidy, "no unfinished file")


async def test_seen_events_are_empty_files(court: Court, seen: set[str]) -> None:
    keys = [path for path in seen if path.startswith("state/sentinel/seen/")]
    assert {(court.processes.realm / key).stat().st_size for key in keys} == {0}


def _is_unfinished(name: str) -> bool:
    return name != ".kingdom-task.json" and (name.startswith(".tmp") or name.endswith((".tmp", "~")))


def _above(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]

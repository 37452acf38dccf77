"""The Generals of the court: the shipped ones, and some whose agents ask, fail, sleep or wait."""

import json
import shutil
from pathlib import Path
from typing import Any

from bench.court.court_processes import CourtProcesses
from kingdom.court.package_files import SHIPPED
from tests.acceptance.runs import script

QUESTIONS, BROKEN, ASLEEP, BUSY, LOST, REFUSED, NOBODYS = REPOSITORIES = tuple(
    f"acme/{name}" for name in ("questions", "broken", "asleep", "busy", "lost", "refused", "nobodys")
)
SCHEDULE = "new-year"
# The time limit of the agents of gen-sleeps, in seconds.
TIME_LIMIT = 1
FAILURE = "the printer is on fire"
QUESTION = "Which colour shall the bike shed have?"
_MENTIONED = "github.issue.mentioned"


def gates(processes: CourtProcesses) -> Path:
    """Return the folder in which agents look for the files that they wait for."""
    return processes.directory / "gates"


def gate(processes: CourtProcesses) -> Path:
    """Return the file for which the agents of gen-busy wait."""
    return gates(processes) / "first-is-open"


def second_gate(processes: CourtProcesses) -> Path:
    """Return the file for which the agents of gen-lost wait."""
    return gates(processes) / "second-is-open"


def write_packages(processes: CourtProcesses) -> None:
    """Write every General but the one that is added later."""
    for name in ("gen-pr", "gen-jira"):
        shutil.copytree(SHIPPED / name, processes.directory / "generals" / name)
    processes.write_general(
        "gen-asks",
        _subscribes_to(_MENTIONED, QUESTIONS),
        _works({"ask": QUESTION}, _result("Painted it {reply}."), {"cost": 0.01}, {"answer": "Done."}),
    )
    policy = {"retries": 1, "retry_after_seconds": 0}
    processes.write_general(
        "gen-fails", {**_subscribes_to(_MENTIONED, BROKEN), "policy": policy}, _works({"fail": FAILURE})
    )
    asleep = {**_subscribes_to(_MENTIONED, ASLEEP), "policy": {"retries": 0}}
    processes.write_general("gen-sleeps", asleep, _works({"hang": True}, timeout_seconds=TIME_LIMIT))
    busy = _subscribes_to("github.pr.review_requested", BUSY, supersedes="{repo}#{payload.number}")
    processes.write_general(
        "gen-busy",
        # Before gen-pr, which subscribes to every repository.
        {**busy, "order": 10, "policy": {"concurrency": 1}},
        _works({"wait_for": str(gate(processes))}, _result("Reviewed."), {"answer": "Reviewed."}),
    )
    lost = _works({"wait_for": str(second_gate(processes))}, _result("Found."), {"answer": "Found."})
    processes.write_general("gen-lost", _subscribes_to(_MENTIONED, LOST), lost)
    asking: dict[str, object] = {"petition": "github.review", "body": {"event": "COMMENT", "body": "It is odd indeed."}}
    may = {"petitions": [{"kind": "github.review"}]}
    refused = _works(asking, _result("Reviewed it."), {"answer": "Reviewed it."})
    processes.write_general("gen-refused", {**_subscribes_to(_MENTIONED, REFUSED), "policy": may}, refused)
    firing = {"name": SCHEDULE, "cron": "0 0 1 1 *", "task_type": "fireworks", "payload": {"colour": "red"}}
    fires = _works(_result("Bang."), {"answer": "Bang."}, words="It is {{ event.created_at }}.")
    processes.write_general("gen-fires", {"schedules": [firing]}, fires)


def write_late_package(processes: CourtProcesses) -> None:
    """Write a General that subscribes to the unrouted event."""
    processes.write_general(
        "gen-late", _subscribes_to(_MENTIONED, NOBODYS), _works(_result("Better late."), {"answer": "Done."})
    )


def _subscribes_to(event_type: str, repo: str, **more: Any) -> dict[str, Any]:
    return {"subscribes": [{"type": event_type, "repos": [repo], **more}]}


def _works(*steps: dict[str, object], timeout_seconds: int = 600, words: str = "") -> dict[str, Any]:
    task = {"query": f"{words}\n{script(*steps)}", "timeoutSeconds": timeout_seconds}
    return {"name": "Follow the script", "works": [{"name": "follow", "tasks": [task]}]}


def _result(summary: str) -> dict[str, object]:
    return {"write": "result.json", "text": json.dumps({"status": "success", "summary": summary})}

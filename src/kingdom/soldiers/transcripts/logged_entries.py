"""Convert log entries about an agent's turns to entries of a transcript."""

from collections.abc import Callable, Mapping
from typing import Any

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus
from kingdom.soldiers.agents.transcript import TranscriptEntry
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import DOCUMENTS


async def to_transcript_entry(bus: Bus, workflow: Workflow, logged: LogEntry) -> TranscriptEntry | None:
    """Return a log entry about a turn as an entry of a transcript, or None for other log entries."""
    data = logged.data
    convert = _CONVERTERS.get(logged.type)
    if convert is None or data.get("ignored"):
        return None
    entry = convert(workflow, data)
    if document := data.get("response"):
        entry["answer"] = await _document(bus, document)
    prompt = {"prompt": f"{data['taskId']}#{data['attempt']}"} if "taskId" in data and "attempt" in data else {}
    cost = {"costUsd": data["costUsd"]} if data.get("costUsd") else {}
    return {"at": logged.at.isoformat(), **prompt, **entry, **cost}


async def _document(bus: Bus, document_id: str) -> str:
    async with bus.transaction() as transaction:
        record = await transaction.get(DOCUMENTS.name, document_id)
    return str(record.doc.get("text", "")) if record else "(the text is no longer in the store)"


def _prompt(workflow: Workflow, data: Mapping[str, Any]) -> TranscriptEntry:
    work = workflow.find_work(data["workId"])
    task = work.find_task(data["taskId"]) if work else None
    return {"type": "prompt", "text": task.definition.query if task else "(the task was removed)"}


_CONVERTERS: Mapping[str, Callable[[Workflow, Mapping[str, Any]], TranscriptEntry]] = {
    "AgentStarted": lambda _, data: {"type": "session", "session": data.get("session")},
    "QuerySent": _prompt,
    "QueryResponded": lambda _, __: {"type": "answered"},
    "AgentAsked": lambda _, data: {"type": "asked", "question": data["question"], "choices": data.get("choices", ())},
    "AgentPetitioned": lambda _, data: {"type": "petition", "kind": data["kind"], "body": data["body"]},
    "QueryFailed": lambda _, data: {"type": "failed", "reason": data["error"], "until": data.get("throttledUntil")},
    "ReportGenerated": lambda _, data: {"type": "noted", "text": f"wrote {data['filePath']}"},
    "ReportFailed": lambda _, data: {"type": "failed", "reason": data["error"], "until": data.get("throttledUntil")},
    "AgentError": lambda _, data: {"type": "ended", "reason": data["error"]},
    "AgentStopped": lambda _, __: {"type": "ended", "reason": "stopped"},
}

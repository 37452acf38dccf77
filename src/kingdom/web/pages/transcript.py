"""What the agents of a run said and did, as lines of a page, as text, and their reports."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count

import msgspec
from aiohttp import web

from kingdom.soldiers.agents.transcript import TranscriptEntry, normalize_entry
from kingdom.soldiers.host.command_input import report_document_id
from kingdom.views.transcripts import TranscriptLine
from kingdom.web.api.transcripts import TranscriptPart, TranscriptQuery, list_transcript
from kingdom.web.pages.frame import html_response
from kingdom.web.route import ApiCall
from kingdom.workflow.records import DOCUMENTS, load_workflow

# A download has at most this many parts of about 256 KiB.
_PARTS_MAX = 100
# A longer text is folded, unless that would hide only a few lines.
_LINES_SHOWN, _LINES_SPARED = 8, 4
_SKIPPED = frozenset({"spent", "metered", "step", ""})


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line of a transcript: the anchor of its link, its time, its label, its CSS class, and its text.

    The end of a long text is `folded`.
    """

    anchor: str
    at: datetime | None
    label: str
    css_class: str
    text: str
    folded: str = ""

    @property
    def folded_lines(self) -> int:
        """Return the number of folded lines."""
        return self.folded.count("\n") + 1

    @property
    def whole_text(self) -> str:
        """Return the text with its folded end."""
        return f"{self.text}\n{self.folded}" if self.folded else self.text


def _words(entry: TranscriptEntry, *names: str) -> str:
    return next((str(entry[name]).strip() for name in names if entry.get(name)), "")


def _prompt(entry: TranscriptEntry) -> tuple[str, str, str]:
    if reply := _words(entry, "reply"):
        return "reply", "prompt", reply
    return "continued" if entry.get("continues") else "asked", "prompt", _words(entry, "text")


def _session(entry: TranscriptEntry) -> str:
    return ", ".join(filter(None, (_words(entry, "agent"), _words(entry, "model")))) or "an agent started"


def _output(entry: TranscriptEntry) -> tuple[str, str, str]:
    return ("error", "bad", _words(entry, "text")) if entry.get("isError") else ("", "tool", _words(entry, "text"))


def _asked(entry: TranscriptEntry) -> tuple[str, str, str]:
    choices = " / ".join(map(str, entry.get("choices") or ()))
    return "question", "ask", _words(entry, "question") + (f" ({choices})" if choices else "")


def _petition(entry: TranscriptEntry) -> tuple[str, str, str]:
    fields = "\n".join(f"{name}: {value}" for name, value in (entry.get("body") or {}).items())
    return "petition", "ask", f"{_words(entry, 'kind')}\n{fields}".strip()


_FORMATS: Mapping[str, Callable[[TranscriptEntry], tuple[str, str, str]]] = {
    "session": lambda entry: ("session", "note", _session(entry)),
    "prompt": _prompt,
    "said": lambda entry: ("", "said", _words(entry, "text")),
    "tool": lambda entry: (_words(entry, "tool"), "tool", _words(entry, "detail")),
    "output": _output,
    "petition": _petition,
    "asked": _asked,
    "answered": lambda entry: ("answered", "good", _words(entry, "answer")),
    "failed": lambda entry: ("failed", "bad", _words(entry, "reason")),
    "interrupted": lambda entry: ("stopped", "again", _words(entry, "reason") or "the turn was interrupted"),
    "noted": lambda entry: ("note", "note", _words(entry, "text")),
    "ended": lambda entry: ("ended", "note", _words(entry, "reason")),
}


def show_lines(lines: Iterable[TranscriptLine]) -> Iterator[ShownLine]:
    """Yield the lines that matter to a person. An anchor stays the same however the transcript is cut into parts."""
    last = ""
    for line in lines:
        entry = normalize_entry(line.entry)
        kind = entry["type"]
        if kind in _SKIPPED:
            continue
        convert = _FORMATS.get(kind)
        label, css_class, text = convert(entry) if convert else (kind, "note", msgspec.json.encode(entry).decode())
        if (not text and kind == "output") or (kind == "answered" and text == last):
            # Most agents answer with their last message.
            continue
        last = text if kind == "said" else last
        cost = entry.get("costUsd")
        if isinstance(cost, int | float) and cost:
            text = f"{text} (${cost:.2f})"
        shown, folded = _fold(text)
        yield ShownLine(f"L{line.next_offset}", _time(entry), label, css_class, shown, folded)


async def show_transcript(call: ApiCall) -> web.Response:
    """Return a part of a transcript as an HTML fragment."""
    part: TranscriptPart = await list_transcript(call)
    lines, is_first = list(show_lines(part.items)), not call.query.after
    return html_response("transcript.html", run_id=call.path["id"], part=part, lines=lines, is_first=is_first)


async def download_transcript(call: ApiCall) -> web.Response:
    """Return the transcript of a session as text."""
    query: TranscriptQuery = call.query
    written: list[str] = []
    for number in count():
        part = await list_transcript(replace(call, query=query))
        if part.items and number == _PARTS_MAX:
            written.append(f"The transcript is longer: `kingdom logs {part.soldier}` shows all of it.\n")
            break
        for line in show_lines(part.items):
            at = f"{line.at:%Y-%m-%d %H:%M:%S}" if line.at else ""
            written.append(f"{at} {line.label}: {line.whole_text}\n" if line.label else f"{at} {line.whole_text}\n")
        if part.next is None or not part.items:
            break
        query = msgspec.structs.replace(query, soldier=part.soldier, after=part.next)
    return web.Response(
        text="".join(written),
        content_type="text/plain",
        charset="utf-8",
        headers={"Content-Disposition": 'attachment; filename="transcript.txt"'},
    )


async def show_reports(call: ApiCall) -> web.Response:
    """Return the reports of a run as an HTML fragment."""
    async with call.context.bus.transaction() as transaction:
        _, workflow = await load_workflow(transaction, call.path["id"])
        tasks = [(work, task) for work in workflow.works for task in work.tasks if task.report.file_path]
        keys = [(DOCUMENTS.name, report_document_id(task.report.file_path)) for _, task in tasks]
        if keys:
            await transaction.read_ahead(keys)
        texts = [await transaction.get(*key) for key in keys]
    reports = [
        (work.definition.name, task.report.file_path, str(text.doc.get("text", "")) if text else "")
        for (work, task), text in zip(tasks, texts, strict=True)
    ]
    return html_response("reports.html", reports=reports)


def _fold(text: str) -> tuple[str, str]:
    lines = text.split("\n")
    if len(lines) <= _LINES_SHOWN + _LINES_SPARED:
        return text, ""
    return "\n".join(lines[:_LINES_SHOWN]), "\n".join(lines[_LINES_SHOWN:])


def _time(entry: TranscriptEntry) -> datetime | None:
    try:
        return datetime.fromisoformat(str(entry.get("at", "")))
    except ValueError:
        return None

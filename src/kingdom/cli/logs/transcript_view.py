"""The view of a transcript for a person: prompts, messages, tools, and how each turn ended."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from rich.text import Text

from kingdom.soldiers.agents.transcript import TranscriptEntry, normalize_entry
from kingdom.text import printable

_LABEL_WIDTH = 10
_TIME_WIDTH = 8
# Longer texts are cut to this number of lines, and each line to _LINE_WIDTH characters.
_PROMPT_LINES = 12
_OUTPUT_LINES = 6
_LINE_WIDTH = 2000


class TranscriptView:
    """Formats entries. It remembers the last text of each type, to leave out repeated notes and repeated answers."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def lines(self, entries: Iterable[TranscriptEntry]) -> Iterator[Text]:
        """Yield the text of each entry that matters to a person. A text can have several lines."""
        for entry in coalesced(map(normalize_entry, entries)):
            kind = entry["type"]
            if kind == "answered" and _words(entry, "answer") == self._last.get("said"):
                # Most agents answer with their last message.
                yield _line(entry, "done", _cost(entry), "green")
            elif kind in _FORMATTERS and not self._is_redundant(kind, _words(entry, "text")):
                self._last[kind] = _words(entry, "text")
                yield _FORMATTERS[kind](entry)

    def _is_redundant(self, kind: str, text: str) -> bool:
        """Return whether an entry shows nothing new: no output, or the last note again."""
        return (kind == "output" and not text) or (kind == "noted" and text == self._last.get(kind))


def coalesced(entries: Iterable[TranscriptEntry]) -> Iterator[TranscriptEntry]:
    """Join consecutive pieces of text, and drop entries about usage."""
    held: TranscriptEntry | None = None
    for entry in entries:
        if entry["type"] in {"spent", "metered"}:
            continue
        if held and _continues(held, entry):
            held = {**held, "text": f"{held['text']}\n{entry['text']}"}
            continue
        if held:
            yield held
        held = entry
    if held:
        yield held


def _continues(held: TranscriptEntry, entry: TranscriptEntry) -> bool:
    both_messages = held["type"] == entry["type"] == "said"
    return both_messages and held.get("prompt") == entry.get("prompt") and "text" in held and "text" in entry


def _words(entry: TranscriptEntry, field: str) -> str:
    return str(entry.get(field) or "").strip()


def _session(entry: TranscriptEntry) -> Text:
    parts = [entry.get("agent"), entry.get("model"), f"session {entry.get('session')}"]
    return _line(entry, "session", ", ".join(str(part) for part in parts if part), "dim")


def _prompt(entry: TranscriptEntry) -> Text:
    if reply := entry.get("reply"):
        return _line(entry, "reply", str(reply), "bold")
    label = "continued" if entry.get("continues") else "asked"
    return _line(entry, label, _head(str(entry.get("text", "")), _PROMPT_LINES), "bold")


def _message_lines(entry: TranscriptEntry) -> Text:
    return _line(entry, "said", str(entry.get("text", "")), "")


def _tool(entry: TranscriptEntry) -> Text:
    line = _line(entry, "tool", f"{entry.get('tool', '')}  {_head(str(entry.get('detail', '')), 2)}", "cyan")
    if output := str(entry.get("output") or "").rstrip():
        line.append_text(Text("\n").append_text(_indent(_tail(output, _OUTPUT_LINES), "dim")))
    return line


def _output(entry: TranscriptEntry) -> Text:
    wrong = bool(entry.get("isError"))
    text = _tail(str(entry.get("text", "")).rstrip(), _OUTPUT_LINES)
    return _line(entry, "error" if wrong else "", text, "red" if wrong else "dim")


def _petition(entry: TranscriptEntry) -> Text:
    body = entry.get("body") or {}
    fields = ", ".join(f"{name}: {_head(str(value), 1)}" for name, value in body.items())
    return _line(entry, "petition", f"{entry.get('kind', '')}  {fields}", "yellow")


def _asked(entry: TranscriptEntry) -> Text:
    choices = " / ".join(map(str, entry.get("choices") or ()))
    question = str(entry.get("question", "")) + (f" ({choices})" if choices else "")
    return _line(entry, "question", question + _cost(entry, before=" "), "yellow")


def _answered(entry: TranscriptEntry) -> Text:
    return _line(entry, "answered", str(entry.get("answer", "")).strip() + _cost(entry, before=" "), "green")


def _failed(entry: TranscriptEntry) -> Text:
    until = f"; it can continue at {entry['until']}" if entry.get("until") else ""
    return _line(entry, "failed", f"{entry.get('reason', '')}{until}{_cost(entry, before=' ')}", "red")


def _interrupted(entry: TranscriptEntry) -> Text:
    reason = entry.get("reason") or "the turn was interrupted"
    return _line(entry, "stopped", f"{reason}{_cost(entry, before=' ')}", "magenta")


def _noted(entry: TranscriptEntry) -> Text:
    return _line(entry, "note", str(entry.get("text", "")), "dim")


def _ended(entry: TranscriptEntry) -> Text:
    return _line(entry, "ended", str(entry.get("reason", "")), "dim")


_FORMATTERS: Mapping[str, Callable[[TranscriptEntry], Text]] = {
    "session": _session,
    "prompt": _prompt,
    "said": _message_lines,
    "tool": _tool,
    "output": _output,
    "petition": _petition,
    "asked": _asked,
    "answered": _answered,
    "failed": _failed,
    "interrupted": _interrupted,
    "noted": _noted,
    "ended": _ended,
}


def _line(entry: TranscriptEntry, label: str, words: str, style: str) -> Text:
    first, *rest = words.split("\n")
    line = Text(f"{_time(entry):<{_TIME_WIDTH}} ", style="dim")
    line.append(f"{label:<{_LABEL_WIDTH}}", style=style or "default")
    # Only labels have colors; the text itself stays plain.
    line.append(printable(first[:_LINE_WIDTH]), style="dim" if style == "dim" else "not dim")
    if rest:
        line.append("\n")
        line.append_text(_indent("\n".join(rest), "dim" if style == "dim" else "not dim"))
    return line


def _indent(words: str, style: str) -> Text:
    indent = " " * (_TIME_WIDTH + 1 + _LABEL_WIDTH)
    return Text("\n".join(indent + printable(line[:_LINE_WIDTH]) for line in words.split("\n")), style=style)


def _time(entry: TranscriptEntry) -> str:
    try:
        return datetime.fromisoformat(str(entry.get("at", ""))).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return ""


def _cost(entry: TranscriptEntry, *, before: str = "") -> str:
    cost = entry.get("costUsd")
    return f"{before}(${cost:.2f})" if isinstance(cost, int | float) and cost else ""


def _head(text: str, lines: int) -> str:
    """Return the first lines of a text and the number of omitted lines."""
    every = text.strip().split("\n")
    more = len(every) - lines
    return "\n".join([*every[:lines], f"… and {more} more line(s)"] if more > 0 else every)


def _tail(text: str, lines: int) -> str:
    """Return the last lines of a text and the number of omitted lines."""
    every = text.split("\n")
    before = len(every) - lines
    return "\n".join([f"… {before} line(s) before", *every[-lines:]] if before > 0 else every)

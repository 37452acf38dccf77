"""How the entries of a transcript look to a person: what was asked and said, the tools, how each turn ended."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from rich.text import Text

from kingdom.soldiers.transcript import Entry, typed
from kingdom.text import printable

_LABEL_WIDTH = 10
_TIME_WIDTH = 8
_PROMPT_LINES = 12
_OUTPUT_LINES = 6
_LINE_WIDTH = 2000


class TranscriptView:
    """Tells what entries say; it remembers what it told last, so that nothing is told twice."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def lines(self, entries: Iterable[Entry]) -> Iterator[Text]:
        """Yield a line, which may have several, per thing that a person cares for."""
        for entry in coalesced(map(typed, entries)):
            kind = entry["type"]
            if kind == "answered" and _words(entry, "answer") == self._told.get("said"):
                # The answer of most agents is what they said last.
                yield _line(entry, "done", _cost(entry), "green")
            elif kind in _TELLERS and not self._is_idle(kind, _words(entry, "text")):
                self._told[kind] = _words(entry, "text")
                yield _TELLERS[kind](entry)

    def _is_idle(self, kind: str, text: str) -> bool:
        """Tell whether there is nothing to tell: no output, or a note that was just told."""
        return (kind == "output" and not text) or (kind == "noted" and text == self._told.get(kind))


def coalesced(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield entries with pieces of text that follow one another as one, and without what is said again at the end."""
    held: Entry | None = None
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


def _continues(held: Entry, entry: Entry) -> bool:
    both_said = held["type"] == entry["type"] == "said"
    return both_said and held.get("prompt") == entry.get("prompt") and "text" in held and "text" in entry


def _words(entry: Entry, field: str) -> str:
    return str(entry.get(field) or "").strip()


def _session(entry: Entry) -> Text:
    parts = [entry.get("agent"), entry.get("model"), f"session {entry.get('session')}"]
    return _line(entry, "session", ", ".join(str(part) for part in parts if part), "dim")


def _prompt(entry: Entry) -> Text:
    if reply := entry.get("reply"):
        return _line(entry, "reply", str(reply), "bold")
    label = "goes on" if entry.get("continues") else "asked"
    return _line(entry, label, _head(str(entry.get("text", "")), _PROMPT_LINES), "bold")


def _said(entry: Entry) -> Text:
    return _line(entry, "said", str(entry.get("text", "")), "")


def _tool(entry: Entry) -> Text:
    line = _line(entry, "tool", f"{entry.get('tool', '')}  {_head(str(entry.get('detail', '')), 2)}", "cyan")
    if output := str(entry.get("output") or "").rstrip():
        line.append_text(Text("\n").append_text(_continued(_tail(output, _OUTPUT_LINES), "dim")))
    return line


def _output(entry: Entry) -> Text:
    wrong = bool(entry.get("isError"))
    text = _tail(str(entry.get("text", "")).rstrip(), _OUTPUT_LINES)
    return _line(entry, "error" if wrong else "", text, "red" if wrong else "dim")


def _petition(entry: Entry) -> Text:
    body = entry.get("body") or {}
    fields = ", ".join(f"{name}: {_head(str(value), 1)}" for name, value in body.items())
    return _line(entry, "petition", f"{entry.get('kind', '')}  {fields}", "yellow")


def _asked(entry: Entry) -> Text:
    choices = " / ".join(map(str, entry.get("choices") or ()))
    question = str(entry.get("question", "")) + (f" ({choices})" if choices else "")
    return _line(entry, "question", question + _cost(entry, before=" "), "yellow")


def _answered(entry: Entry) -> Text:
    return _line(entry, "answered", str(entry.get("answer", "")).strip() + _cost(entry, before=" "), "green")


def _failed(entry: Entry) -> Text:
    until = f"; it may go on at {entry['until']}" if entry.get("until") else ""
    return _line(entry, "failed", f"{entry.get('reason', '')}{until}{_cost(entry, before=' ')}", "red")


def _interrupted(entry: Entry) -> Text:
    reason = entry.get("reason") or "the turn was interrupted"
    return _line(entry, "stopped", f"{reason}{_cost(entry, before=' ')}", "magenta")


def _noted(entry: Entry) -> Text:
    return _line(entry, "note", str(entry.get("text", "")), "dim")


def _ended(entry: Entry) -> Text:
    return _line(entry, "ended", str(entry.get("reason", "")), "dim")


_TELLERS: Mapping[str, Callable[[Entry], Text]] = {
    "session": _session,
    "prompt": _prompt,
    "said": _said,
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


def _line(entry: Entry, label: str, words: str, style: str) -> Text:
    first, *rest = words.split("\n")
    line = Text(f"{_time(entry):<{_TIME_WIDTH}} ", style="dim")
    line.append(f"{label:<{_LABEL_WIDTH}}", style=style or "default")
    # What is said is for reading; only the frame around it has colours.
    line.append(printable(first[:_LINE_WIDTH]), style="dim" if style == "dim" else "not dim")
    if rest:
        line.append("\n")
        line.append_text(_continued("\n".join(rest), "dim" if style == "dim" else "not dim"))
    return line


def _continued(words: str, style: str) -> Text:
    indent = " " * (_TIME_WIDTH + 1 + _LABEL_WIDTH)
    return Text("\n".join(indent + printable(line[:_LINE_WIDTH]) for line in words.split("\n")), style=style)


def _time(entry: Entry) -> str:
    try:
        return datetime.fromisoformat(str(entry.get("at", ""))).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return ""


def _cost(entry: Entry, *, before: str = "") -> str:
    cost = entry.get("costUsd")
    return f"{before}(${cost:.2f})" if isinstance(cost, int | float) and cost else ""


def _head(text: str, lines: int) -> str:
    """Return the first lines of a text, and how many more it has."""
    every = text.strip().split("\n")
    more = len(every) - lines
    return "\n".join([*every[:lines], f"… and {more} more line(s)"] if more > 0 else every)


def _tail(text: str, lines: int) -> str:
    """Return the last lines of a text, and how many stand before them."""
    every = text.split("\n")
    before = len(every) - lines
    return "\n".join([f"… {before} line(s) before", *every[-lines:]] if before > 0 else every)

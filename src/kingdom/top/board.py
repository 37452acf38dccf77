"""The main screen: the light, the queues, the money, and one of four panes."""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from kingdom.errors import KingdomError
from kingdom.text import plain
from kingdom.top.desk import Desk, Glance
from kingdom.top.dialogs import Answer, Choose, Confirm, Help
from kingdom.top.listing import Listing
from kingdom.top.reader import Reader
from kingdom.top.readers import Read, Readers
from kingdom.top.rows import (
    ATTENTION,
    BAD,
    COLUMNS,
    QUIET,
    Cell,
    Pane,
    Row,
    count_of,
    headline,
    rows_of,
    summary,
)
from kingdom.top.tellings import letters_told, question_told, ways_back
from kingdom.top.waiting import Alarm

# A look that takes long is followed by a longer rest, so that a store with much in it is not kept busy by a screen.
_REST_FACTOR = 4.0
_PANES = tuple(Pane)


class Board(Screen[None]):
    """Everything at a glance; what the cursor is on can be opened, followed, answered, resumed and cancelled."""

    DEFAULT_CSS = """
    Board > Static { height: 1; }
    Board > #light, Board > #summary { padding: 0 1; }
    Board > #tabs { padding: 0 1; background: $panel; }
    Board > Listing { padding: 0 1; }
    Board > #words { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    Board > #filter { display: none; height: 1; border: none; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("enter", "open", "open", key_display="⏎"),
        Binding("l", "logs", "logs"),
        Binding("d", "diff", "diff"),
        Binding("r", "resume", "resume"),
        Binding("c", "cancel", "cancel"),
        Binding("a", "answer", "answer"),
        Binding("y", "why", "why"),
        Binding("q", "app.quit", "quit"),
        Binding("tab", "next_pane(1)", "next pane", show=False),
        Binding("shift+tab", "next_pane(-1)", "previous pane", show=False),
        *(Binding(str(number), f"pane('{pane}')", pane, show=False) for number, pane in enumerate(_PANES, start=1)),
        Binding("u", "again", "look again", show=False),
        Binding("escape", "show_all", "show all again", show=False),
    ]

    def __init__(self, desk: Desk, readers: Readers, every: float) -> None:
        super().__init__()
        self._desk = desk
        self._readers = readers
        self._every = every
        self._glance: Glance | None = None
        self._rows: dict[Pane, list[Row]] = {}
        self._trouble = ""
        self._pane = Pane.RUNS
        self._filters: dict[Pane, str] = {}
        self._alarm = Alarm()
        self._light, self._summary, self._tabs = Static(id="light"), Static(id="summary"), Static(id="tabs")
        self._listings = {pane: Listing(COLUMNS[pane], name=pane) for pane in _PANES}
        self._words = Static(id="words")
        self._filter = Input(
            id="filter", placeholder="only what has all of these words; enter keeps it, escape forgets it", compact=True
        )

    def compose(self) -> ComposeResult:
        """See textual."""
        yield self._light
        yield self._summary
        yield self._tabs
        yield from self._listings.values()
        yield self._words
        yield self._filter
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """See textual."""
        self._light.update(Text("Looking at the store …", style=QUIET))
        self.action_pane(self._pane)
        self.run_worker(self._watch())

    def on_listing_moved(self) -> None:
        """Tell all of what the cursor is on."""
        self._show_words()

    def on_listing_opened(self) -> None:
        """Open what was clicked twice."""
        self.action_open()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while somebody types."""
        self._filters[self._pane] = event.value
        self._show()

    def on_input_submitted(self) -> None:
        """Keep the filter and go back to the list."""
        self._leave_filter()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - textual's form
        """Tell whether a key means something now: who types a filter cannot begin one."""
        return action != "filter" or not self._filter.has_focus

    def action_help(self) -> None:
        """Show every key."""
        self.app.push_screen(Help.of(self))

    def action_again(self) -> None:
        """Look again at once."""
        self._alarm.ring()

    def action_pane(self, name: str) -> None:
        """Show a pane."""
        self._pane = Pane(name)
        for pane, listing in self._listings.items():
            listing.display = pane is self._pane
        with self.prevent(Input.Changed):
            self._filter.value = self._filters.get(self._pane, "")
        self._leave_filter()
        self._show()

    def action_next_pane(self, by: int) -> None:
        """Show the next pane, or the one before."""
        self.action_pane(_PANES[(_PANES.index(self._pane) + by) % len(_PANES)])

    def action_filter(self) -> None:
        """Let somebody type what the rows must have."""
        line = self._filter
        line.display = True
        line.focus()

    def action_show_all(self) -> None:
        """Forget the filter."""
        self._filter.value = ""
        self._filters.pop(self._pane, None)
        self._leave_filter()
        self._show()

    def action_open(self) -> None:
        """Show all of what the cursor is on, live."""
        row = self._listing.row
        if row is None:
            return
        if row.ask:
            self._read(f"{row.key} asks", partial(_told, question_told(row.ask)), every=None)
        elif row.run:
            self._read(row.run, partial(_document, self._readers.show, row.run), every=self._every)
        elif row.stream:
            self._read(row.stream, partial(self._letters, row.stream), every=self._every)
        else:
            self._read(row.key, partial(_told, [Text(row.words)]), every=None)

    @work
    async def action_logs(self) -> None:
        """Follow what the agents of a run say and do."""
        if run := self._chosen_run():
            try:
                read = await self._readers.logs(run)
            except (KingdomError, OSError) as error:
                self._tell(str(error), wrong=True)
            else:
                self._read(f"{run}: what its agents say and do", read, every=self._every, grows=True)

    def action_diff(self) -> None:
        """Show what a run changed."""
        if run := self._chosen_run():
            self._read(f"{run}: what it changed", partial(_document, self._readers.diff, run), every=None)

    def action_why(self) -> None:
        """Tell what became of something, from the event outside to the result."""
        row = self._listing.row
        if row is None or not row.about:
            self._tell("This explains a run or a question: put the cursor on one.")
            return
        self._read(f"{row.about}: why", partial(_document, self._readers.explain, row.about), every=None)

    @work
    async def action_answer(self) -> None:
        """Answer a question in place."""
        dialog = self._question_here()
        if dialog is None:
            self._tell("Nothing is asked here: pane 3 shows what waits for a person.")
        elif await self.app.push_screen_wait(dialog):
            self._tell("Answered.")
            self._alarm.ring()

    @work
    async def action_cancel(self) -> None:
        """Give a run up, after a question."""
        if not (run_id := self._chosen_run()):
            return
        try:
            run = await self._desk.run(run_id)
            question = (
                f"Cancel {run.id} ({run.name}), which is {run.status}?"
                " What runs is interrupted; its commits stay on their branches."
            )
            if await self.app.push_screen_wait(Confirm(question)):
                await self._desk.cancel(run_id)
                self._tell(f"{run_id} is given up.")
                self._alarm.ring()
        except (KingdomError, OSError) as error:
            self._tell(str(error), wrong=True)

    @work
    async def action_resume(self) -> None:
        """Let a run go on from a point that a person chooses."""
        if not (run_id := self._chosen_run()):
            return
        try:
            run = await self._desk.run(run_id)
            run.allow("resume")
            ways = ways_back(run)
            asks = f" It asks: {run.question.text}" if run.question else ""
            question = f"Where shall {run.id} ({run.name}) go on?{asks}"
            chosen = await self.app.push_screen_wait(Choose(question, [words for words, _ in ways]))
            if chosen is None:
                return
            resumed = await self._desk.resume(run_id, ways[chosen][1])
            self._tell(f"{run_id} goes on.")
            for words in await self._readers.left_outside(resumed):
                self._tell(words, wrong=True)
            self._alarm.ring()
        except (KingdomError, OSError) as error:
            self._tell(str(error), wrong=True)

    @property
    def _listing(self) -> Listing:
        return self._listings[self._pane]

    def _question_here(self) -> Answer | None:
        """Return the dialog for what the row under the cursor asks: the court for a run, or a run of a person."""
        row, glance = self._listing.row, self._glance
        if row is None or glance is None:
            return None
        for ask in [row.ask] if row.ask else [each for each in glance.asks if row.run == each.workflow_id]:
            return Answer(ask.general or ask.id, ask.question, ask.choices, partial(self._desk.answer, ask))
        for run in glance.asking_runs:
            if run.id == row.run and run.question:
                return Answer(run.name, run.question.text, run.question.choices, partial(self._reply, run.id))
        return None

    async def _reply(self, run_id: str, text: str) -> None:
        await self._desk.reply(run_id, text)

    async def _letters(self, stream: str) -> Sequence[RenderableType]:
        rows = [row for row in self._glance.streams if row.stream == stream] if self._glance else []
        return letters_told(rows, await self._desk.dead_letters(stream))

    def _chosen_run(self) -> str:
        row = self._listing.row
        if row is None or not row.run:
            self._tell("This needs a run: put the cursor on one.")
            return ""
        return row.run

    def _read(self, title: str, read: Read, *, every: float | None, grows: bool = False) -> None:
        self.app.push_screen(Reader(title, read, every=every, grows=grows))

    def _tell(self, words: str, *, wrong: bool = False) -> None:
        self.app.notify(plain(words), severity="warning" if wrong else "information", markup=False)

    def _leave_filter(self) -> None:
        line = self._filter
        line.display = bool(line.value)
        self._listing.focus()

    async def _watch(self) -> None:
        while self.is_attached:
            began = time.monotonic()
            try:
                self._glance, self._trouble = await self._desk.look(), ""
            except (KingdomError, OSError) as error:
                self._trouble = plain(error)
            else:
                self._rows = {pane: rows_of(pane, self._glance) for pane in _PANES}
            self._show()
            await self._alarm.wait(max(self._every, (time.monotonic() - began) * _REST_FACTOR))

    def _show(self) -> None:
        """Draw what was last seen."""
        self._show_light()
        if self._glance is None:
            return
        tabs = Text()
        for number, pane in enumerate(_PANES, start=1):
            rows = self._rows[pane]
            wanted = self._filters.get(pane, "")
            shown = [row for row in rows if row.has(wanted)] if wanted else rows
            if pane is self._pane:
                self._listing.fill(shown)
            all_of_them = count_of(rows, is_cut=pane is Pane.RUNS and self._glance.is_cut)
            count = f"{len(shown)}/{all_of_them}" if wanted else all_of_them
            tabs.append(f" {number} {pane} {count} ", "reverse" if pane is self._pane else "")
            tabs.append(" ")
        self._tabs.update(tabs)
        self._summary.update(_line(summary(self._glance)))
        self._show_words()

    def _show_light(self) -> None:
        light = self._light
        if self._trouble:
            seen = f" What is shown is of {self._glance.standing.at.astimezone():%H:%M:%S}." if self._glance else ""
            cells = [Cell("● ", BAD), Cell("no answer", BAD), Cell(f" trying again.{seen} {self._trouble}", ATTENTION)]
            light.update(_line(cells))
        elif self._glance:
            light.update(_line(headline(self._glance.standing)))

    def _show_words(self) -> None:
        row = self._listing.row
        if row or self._glance is None:
            words = row.words if row else ""
        else:
            words = "Nothing has all of these words." if self._filters.get(self._pane) else _EMPTY[self._pane]
        self._words.update(Text(words))


_EMPTY = {
    Pane.RUNS: "Nothing runs.",
    Pane.QUEUES: "Every queue is empty.",
    Pane.INBOX: "Nobody waits for an answer.",
    Pane.HEALTH: "Nothing is known of any role.",
}


def _line(cells: Sequence[Cell]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for cell in cells:
        line.append(cell.text, cell.style)
    return line


async def _told(parts: Sequence[RenderableType]) -> Sequence[RenderableType]:
    return parts


async def _document(read: Callable[[str], Awaitable[RenderableType]], run: str) -> Sequence[RenderableType]:
    return [await read(run)]

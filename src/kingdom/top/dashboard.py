"""The main screen: health, queues, today's cost, and one of five panes."""

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
from kingdom.top.details import describe_question, describe_queue, list_resume_points
from kingdom.top.dialogs import AnswerDialog, ChoiceDialog, ConfirmDialog, HelpDialog
from kingdom.top.document_screen import DocumentScreen
from kingdom.top.listing import Listing
from kingdom.top.refresh_timer import RefreshTimer
from kingdom.top.rows import (
    ATTENTION,
    BAD,
    COLUMNS,
    QUIET,
    Cell,
    Pane,
    PaneRow,
    build_headline,
    build_rows,
    build_summary,
    format_count,
)
from kingdom.top.run_views import ReadContent, RunViews
from kingdom.top.store_client import StoreClient, TopSnapshot

# The wait after a refresh is at least this many times its duration, so that a large store is not always busy.
_WAIT_FACTOR = 4.0
_PANES = tuple(Pane)


class Dashboard(Screen[None]):
    """Shows the whole court; the row under the cursor can be opened, answered, resumed and cancelled."""

    DEFAULT_CSS = """
    Dashboard > Static { height: 1; }
    Dashboard > #headline, Dashboard > #summary { padding: 0 1; }
    Dashboard > #tabs { padding: 0 1; background: $panel; }
    Dashboard > Listing { padding: 0 1; }
    Dashboard > #details { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    Dashboard > #filter { display: none; height: 1; border: none; padding: 0 1; }
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
        Binding("u", "refresh_now", "refresh", show=False),
        Binding("escape", "show_all", "clear the filter", show=False),
    ]

    def __init__(self, client: StoreClient, views: RunViews, every: float) -> None:
        super().__init__()
        self._client = client
        self._views = views
        self._every = every
        self._snapshot: TopSnapshot | None = None
        self._rows: dict[Pane, list[PaneRow]] = {}
        self._error = ""
        self._pane = Pane.RUNS
        self._filters: dict[Pane, str] = {}
        self._timer = RefreshTimer()
        self._headline, self._summary, self._tabs = Static(id="headline"), Static(id="summary"), Static(id="tabs")
        self._listings = {pane: Listing(COLUMNS[pane], name=pane) for pane in _PANES}
        self._details = Static(id="details")
        self._filter = Input(
            id="filter",
            placeholder="words that a row must contain; enter keeps the filter, escape clears it",
            compact=True,
        )

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield self._headline
        yield self._summary
        yield self._tabs
        yield from self._listings.values()
        yield self._details
        yield self._filter
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Start refreshing."""
        self._headline.update(Text("Reading the store …", style=QUIET))
        self.action_pane(self._pane)
        self.run_worker(self._refresh_forever())

    def on_listing_moved(self) -> None:
        """Show the full text of the row under the cursor."""
        self._show_details()

    def on_listing_opened(self) -> None:
        """Open the row after a double click."""
        self.action_open()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._filters[self._pane] = event.value
        self._show()

    def on_input_submitted(self) -> None:
        """Keep the filter and go back to the list."""
        self._leave_filter()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual passes it
        """Return whether an action is available. While the user types a filter, the key `/` is part of it."""
        return action != "filter" or not self._filter.has_focus

    def action_help(self) -> None:
        """Show every key."""
        self.app.push_screen(HelpDialog.of(self))

    def action_refresh_now(self) -> None:
        """Refresh at once."""
        self._timer.trigger()

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
        """Show the next pane, or the previous pane if `by` is -1."""
        self.action_pane(_PANES[(_PANES.index(self._pane) + by) % len(_PANES)])

    def action_filter(self) -> None:
        """Start typing a filter."""
        line = self._filter
        line.display = True
        line.focus()

    def action_show_all(self) -> None:
        """Clear the filter."""
        self._filter.value = ""
        self._filters.pop(self._pane, None)
        self._leave_filter()
        self._show()

    def action_open(self) -> None:
        """Open a live view of the row under the cursor."""
        row = self._listing.row
        if row is None:
            return
        if row.ask:
            self._open(f"{row.key} asks", partial(_static, describe_question(row.ask)), every=None)
        elif row.run:
            self._open(row.run, partial(_document, self._views.show, row.run), every=self._every)
        elif row.stream:
            self._open(row.stream, partial(self._describe_stream, row.stream), every=self._every)
        else:
            self._open(row.key, partial(_static, [Text(row.full_text)]), every=None)

    @work
    async def action_logs(self) -> None:
        """Follow the transcripts of a run."""
        if run := self._chosen_run():
            try:
                read = await self._views.logs(run)
            except (KingdomError, OSError) as error:
                self._notify(str(error), wrong=True)
            else:
                self._open(f"{run}: transcripts", read, every=self._every, grows=True)

    def action_diff(self) -> None:
        """Show the changes of a run."""
        if run := self._chosen_run():
            self._open(f"{run}: changes", partial(_document, self._views.diff, run), every=None)

    def action_why(self) -> None:
        """Show the timeline of a run or question, from the external event to the result."""
        row = self._listing.row
        if row is None or not row.explain_id:
            self._notify("This explains a run or a question: put the cursor on one.")
            return
        self._open(f"{row.explain_id}: why", partial(_document, self._views.explain, row.explain_id), every=None)

    @work
    async def action_answer(self) -> None:
        """Answer a question in place."""
        dialog = self._question_dialog()
        if dialog is None:
            self._notify("There is no question here: pane 3 shows all questions.")
        elif await self.app.push_screen_wait(dialog):
            self._notify("Answered.")
            self._timer.trigger()

    @work
    async def action_cancel(self) -> None:
        """Cancel a run after a confirmation."""
        if not (run_id := self._chosen_run()):
            return
        try:
            run = await self._client.run(run_id)
            question = (
                f"Cancel {run.id} ({run.name}), which is {run.status}?"
                " Its agent is interrupted; its commits stay on their branches."
            )
            if await self.app.push_screen_wait(ConfirmDialog(question)):
                await self._client.cancel(run_id)
                self._notify(f"{run_id} is being cancelled.")
                self._timer.trigger()
        except (KingdomError, OSError) as error:
            self._notify(str(error), wrong=True)

    @work
    async def action_resume(self) -> None:
        """Resume a run from a point that the user chooses."""
        if not (run_id := self._chosen_run()):
            return
        try:
            run = await self._client.run(run_id)
            run.require_allowed("resume")
            points = list_resume_points(run)
            asks = f" It asks: {run.question.text}" if run.question else ""
            question = f"Where should {run.id} ({run.name}) continue?{asks}"
            chosen = await self.app.push_screen_wait(ChoiceDialog(question, [text for text, _ in points]))
            if chosen is None:
                return
            resumed = await self._client.resume(run_id, points[chosen][1])
            self._notify(f"{run_id} continues.")
            for text in await self._views.irreversible_effects(resumed):
                self._notify(text, wrong=True)
            self._timer.trigger()
        except (KingdomError, OSError) as error:
            self._notify(str(error), wrong=True)

    @property
    def _listing(self) -> Listing:
        return self._listings[self._pane]

    def _question_dialog(self) -> AnswerDialog | None:
        """Return the dialog for the question of the row under the cursor, if it has one."""
        row, snapshot = self._listing.row, self._snapshot
        if row is None or snapshot is None:
            return None
        for ask in [row.ask] if row.ask else [each for each in snapshot.asks if row.run == each.workflow_id]:
            send = partial(self._client.answer, ask)
            return AnswerDialog(ask.general or ask.id, ask.text, ask.choices, send, ask.similar_choice)
        for run in snapshot.asking_runs:
            if run.id == row.run and run.question:
                return AnswerDialog(run.name, run.question.text, run.question.choices, partial(self._reply, run.id))
        return None

    async def _reply(self, run_id: str, text: str) -> None:
        await self._client.reply(run_id, text)

    async def _describe_stream(self, stream: str) -> Sequence[RenderableType]:
        rows = [row for row in self._snapshot.streams if row.stream == stream] if self._snapshot else []
        return describe_queue(rows, await self._client.dead_letters(stream))

    def _chosen_run(self) -> str:
        row = self._listing.row
        if row is None or not row.run:
            self._notify("This needs a run: put the cursor on one.")
            return ""
        return row.run

    def _open(self, title: str, read: ReadContent, *, every: float | None, grows: bool = False) -> None:
        self.app.push_screen(DocumentScreen(title, read, every=every, grows=grows))

    def _notify(self, text: str, *, wrong: bool = False) -> None:
        self.app.notify(plain(text), severity="warning" if wrong else "information", markup=False)

    def _leave_filter(self) -> None:
        line = self._filter
        line.display = bool(line.value)
        self._listing.focus()

    async def _refresh_forever(self) -> None:
        while self.is_attached:
            began = time.monotonic()
            try:
                self._snapshot, self._error = await self._client.read_snapshot(), ""
            except (KingdomError, OSError) as error:
                self._error = plain(error)
            else:
                self._rows = {pane: build_rows(pane, self._snapshot) for pane in _PANES}
            self._show()
            await self._timer.wait(max(self._every, (time.monotonic() - began) * _WAIT_FACTOR))

    def _show(self) -> None:
        """Draw the last snapshot."""
        self._show_headline()
        if self._snapshot is None:
            return
        tabs = Text()
        for number, pane in enumerate(_PANES, start=1):
            rows = self._rows[pane]
            wanted = self._filters.get(pane, "")
            shown = [row for row in rows if row.matches(wanted)] if wanted else rows
            if pane is self._pane:
                self._listing.fill(shown)
            total = format_count(rows, is_truncated=pane is Pane.RUNS and self._snapshot.is_truncated)
            count = f"{len(shown)}/{total}" if wanted else total
            tabs.append(f" {number} {pane} {count} ", "reverse" if pane is self._pane else "")
            tabs.append(" ")
        self._tabs.update(tabs)
        self._summary.update(_line(build_summary(self._snapshot)))
        self._show_details()

    def _show_headline(self) -> None:
        if self._error:
            read_at = f" Last read at {self._snapshot.status.at.astimezone():%H:%M:%S}." if self._snapshot else ""
            cells = [Cell("● ", BAD), Cell("no answer", BAD), Cell(f" trying again.{read_at} {self._error}", ATTENTION)]
            self._headline.update(_line(cells))
        elif self._snapshot:
            self._headline.update(_line(build_headline(self._snapshot.status)))

    def _show_details(self) -> None:
        row = self._listing.row
        if row or self._snapshot is None:
            text = row.full_text if row else ""
        else:
            text = "No row contains all of these words." if self._filters.get(self._pane) else _EMPTY[self._pane]
        self._details.update(Text(text))


_EMPTY = {
    Pane.RUNS: "Nothing runs.",
    Pane.QUEUES: "Every queue is empty.",
    Pane.INBOX: "No question is open.",
    Pane.HEALTH: "No role has reported yet.",
    Pane.FOLLOWUPS: "No pull request is followed.",
}


def _line(cells: Sequence[Cell]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for cell in cells:
        line.append(cell.text, cell.style)
    return line


async def _static(parts: Sequence[RenderableType]) -> Sequence[RenderableType]:
    return parts


async def _document(read: Callable[[str], Awaitable[RenderableType]], run: str) -> Sequence[RenderableType]:
    return [await read(run)]

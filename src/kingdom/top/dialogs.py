"""The dialogs: a confirmation, a choice, an answer, and the list of all keys."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.suggester import SuggestFromList
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kingdom.errors import KingdomError, describe_error
from kingdom.text import plain
from kingdom.top.rows import BAD

_BOX = """
{name} {{ align: center middle; }}
{name} > #box {{ width: 90%; max-width: 90; height: auto; max-height: 90%; padding: 1 2; background: $panel; }}
{name} Static {{ height: auto; }}
{name} OptionList, {name} Input {{ margin-top: 1; }}
{name} OptionList {{ height: auto; max-height: 12; }}
"""


class ConfirmDialog(ModalScreen[bool]):
    """Asks whether to do something. `y` means yes; `n`, `q`, escape and enter mean no."""

    DEFAULT_CSS = _BOX.format(name="ConfirmDialog")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "decide(True)", "yes"),
        Binding("n,escape,q,enter", "decide(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(id="box"):
            yield Static(Text(plain(self._question)))
            yield Static(Text("\ny yes   n no", style="bold"))

    def action_decide(self, answer: bool) -> None:  # noqa: FBT001 - Textual calls it with one positional argument
        """Close the dialog with an answer."""
        self.dismiss(answer)


class ChoiceDialog(ModalScreen[int | None]):
    """Asks for one of several options. Returns the index of the chosen option, or None."""

    DEFAULT_CSS = _BOX.format(name="ChoiceDialog")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "none of these")]

    def __init__(self, question: str, options: Sequence[str]) -> None:
        super().__init__()
        self._question = question
        self._options = options

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(id="box"):
            yield Static(Text(plain(self._question)))
            yield OptionList(*(Option(Text(plain(option))) for option in self._options))
            yield Static(Text("\nenter chooses   escape cancels", style="dim"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close the dialog with the chosen option."""
        self.dismiss(event.option_index)

    def action_leave(self) -> None:
        """Close the dialog without a choice."""
        self.dismiss(None)


class AnswerDialog(ModalScreen[bool]):
    """Asks for an answer and sends it. A rejected answer can be corrected. Returns whether an answer was accepted.

    `similar_choice` returns the choice that a text resembles, if any. Such a text must be entered twice.
    """

    DEFAULT_CSS = _BOX.format(name="AnswerDialog")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "do not answer")]

    def __init__(
        self,
        who: str,
        question: str,
        choices: Sequence[str],
        send: Callable[[str], Awaitable[None]],
        similar_choice: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._who = who
        self._question = question
        self._choices = choices
        self._send = send
        self._similar_choice = similar_choice
        self._questioned = ""

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(id="box"):
            yield Static(Text(f"{plain(self._who)} asks:\n", style="bold"))
            with VerticalScroll(can_focus=False):
                yield Static(Text("\n".join(map(plain, self._question.splitlines()))))
            if self._choices:
                yield Static(Text(f"\nChoices: {' / '.join(map(plain, self._choices))}", style="bold"))
            # Suggestions are shown on the terminal, so control characters are escaped.
            shown = [each for each in map(plain, self._choices) if each]
            yield Input(placeholder="your answer", suggester=SuggestFromList(shown, case_sensitive=False))
            yield Static(Text("enter sends   escape leaves the question open", style="dim"), id="note")

    def on_mount(self) -> None:
        """Focus the input."""
        self.query_one(Input).focus()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send the answer, or show why it is rejected."""
        text = self._to_choice(event.value)
        if text != self._questioned and (meant := self._similar_choice(text)):
            self._questioned = text
            self._show_problem(f"{text} is none of the choices; did you mean {meant}? enter sends {text} as free text")
            return
        try:
            await self._send(text)
        except (KingdomError, OSError) as error:
            self._show_problem(describe_error(error))
        else:
            self.dismiss(True)  # noqa: FBT003 - Textual's dismiss takes one positional result

    def _show_problem(self, problem: str) -> None:
        self.query_one("#note", Static).update(Text(plain(problem), style=BAD))

    def _to_choice(self, text: str) -> str:
        """Return the choice that is displayed as this text, or else the text itself."""
        return next((choice for choice in self._choices if plain(choice) == text), text)

    def action_leave(self) -> None:
        """Leave the question open."""
        self.dismiss(False)  # noqa: FBT003 - as above


class HelpDialog(ModalScreen[None]):
    """Shows all active keys."""

    DEFAULT_CSS = _BOX.format(name="HelpDialog")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "leave", "back")]

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self.lines = list(lines)

    @classmethod
    def of(cls, screen: Screen[None]) -> "HelpDialog":
        """Return the help for a screen: its active keys, grouped by meaning."""
        keys: dict[str, list[str]] = {}
        # The keys of the screen itself come before those of its widgets.
        for active in sorted(
            screen.active_bindings.values(), key=lambda each: (each.node is not screen, not each.binding.show)
        ):
            text = active.binding.description or active.binding.action.replace("_", " ")
            keys.setdefault(text, []).append(screen.app.get_key_display(active.binding))
        return cls((" ".join(dict.fromkeys(shown)), text) for text, shown in keys.items())

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        width = max(len(keys) for keys, _ in self.lines)
        with VerticalScroll(id="box"):
            yield Static(Text("Keys\n", style="bold"))
            yield Static(Text("\n".join(f"{keys:<{width}}  {text}" for keys, text in self.lines)))

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss()

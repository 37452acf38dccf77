"""What a person is asked on top of the screen: yes or no, one of several, a few words; and every key there is."""

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

from kingdom.errors import KingdomError
from kingdom.text import plain
from kingdom.top.rows import BAD

_BOX = """
{name} {{ align: center middle; }}
{name} > #box {{ width: 90%; max-width: 90; height: auto; max-height: 90%; padding: 1 2; background: $panel; }}
{name} Static {{ height: auto; }}
{name} OptionList, {name} Input {{ margin-top: 1; }}
{name} OptionList {{ height: auto; max-height: 12; }}
"""


class Confirm(ModalScreen[bool]):
    """Asks whether to do something; no is what one gets who does not say yes."""

    DEFAULT_CSS = _BOX.format(name="Confirm")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "say(True)", "yes"),
        Binding("n,escape,q,enter", "say(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """See textual."""
        with Vertical(id="box"):
            yield Static(Text(plain(self._question)))
            yield Static(Text("\ny yes   n no", style="bold"))

    def action_say(self, answer: bool) -> None:  # noqa: FBT001 - the form that textual calls
        """End with an answer."""
        self.dismiss(answer)


class Choose(ModalScreen[int | None]):
    """Lets a person choose one of several; returns its number, nothing where none is wanted."""

    DEFAULT_CSS = _BOX.format(name="Choose")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "none of these")]

    def __init__(self, question: str, options: Sequence[str]) -> None:
        super().__init__()
        self._question = question
        self._options = options

    def compose(self) -> ComposeResult:
        """See textual."""
        with Vertical(id="box"):
            yield Static(Text(plain(self._question)))
            yield OptionList(*(Option(Text(plain(option))) for option in self._options))
            yield Static(Text("\nenter takes it   escape none", style="dim"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """End with what was chosen."""
        self.dismiss(event.option_index)

    def action_leave(self) -> None:
        """End with nothing."""
        self.dismiss(None)


class Answer(ModalScreen[bool]):
    """Takes an answer and sends it; one that is refused stays, to be mended. Ends with whether one was given."""

    DEFAULT_CSS = _BOX.format(name="Answer")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "do not answer")]

    def __init__(self, who: str, question: str, choices: Sequence[str], send: Callable[[str], Awaitable[None]]) -> None:
        super().__init__()
        self._who = who
        self._question = question
        self._choices = choices
        self._send = send

    def compose(self) -> ComposeResult:
        """See textual."""
        with Vertical(id="box"):
            yield Static(Text(f"{plain(self._who)} asks:\n", style="bold"))
            with VerticalScroll(can_focus=False):
                yield Static(Text("\n".join(map(plain, self._question.splitlines()))))
            if self._choices:
                yield Static(Text(f"\nChoices: {' / '.join(map(plain, self._choices))}", style="bold"))
            # What is suggested goes to the terminal too.
            shown = [each for each in map(plain, self._choices) if each]
            yield Input(placeholder="your answer", suggester=SuggestFromList(shown, case_sensitive=False))
            yield Static(Text("enter sends it   escape leaves it open", style="dim"), id="note")

    def on_mount(self) -> None:
        """See textual."""
        self.query_one(Input).focus()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send it, and tell why where it does not count."""
        try:
            await self._send(self._meant(event.value))
        except (KingdomError, OSError) as error:
            self.query_one("#note", Static).update(Text(plain(error), style=BAD))
        else:
            self.dismiss(True)  # noqa: FBT003 - the form of textual

    def _meant(self, text: str) -> str:
        """Return the choice that looks like a text on the screen, or the text."""
        return next((choice for choice in self._choices if plain(choice) == text), text)

    def action_leave(self) -> None:
        """Leave the question open."""
        self.dismiss(False)  # noqa: FBT003 - the form of textual


class Help(ModalScreen[None]):
    """Shows every key that means something."""

    DEFAULT_CSS = _BOX.format(name="Help")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "leave", "back")]

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self.lines = list(lines)

    @classmethod
    def of(cls, screen: Screen[None]) -> "Help":
        """Return the help for a screen: what is bound there now, keys of the same meaning together."""
        keys: dict[str, list[str]] = {}
        # What is meant for this screen comes before what every list can do.
        for active in sorted(
            screen.active_bindings.values(), key=lambda each: (each.node is not screen, not each.binding.show)
        ):
            words = active.binding.description or active.binding.action.replace("_", " ")
            keys.setdefault(words, []).append(screen.app.get_key_display(active.binding))
        return cls((" ".join(dict.fromkeys(shown)), words) for words, shown in keys.items())

    def compose(self) -> ComposeResult:
        """See textual."""
        width = max(len(keys) for keys, _ in self.lines)
        with VerticalScroll(id="box"):
            yield Static(Text("Keys\n", style="bold"))
            yield Static(Text("\n".join(f"{keys:<{width}}  {words}" for keys, words in self.lines)))

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss()

"""Run the commands of a page, and stop at the first that differs from the page."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.documentation import surroundings
from tests.documentation.output import is_shown
from tests.documentation.page import CHECKOUT, POSTGRES, STAND_INS, Block, Command, console_blocks
from tests.documentation.shell import Done, Shell, ShellEnded
from tests.patience import PATIENCE_SECONDS

COMMAND_SECONDS = PATIENCE_SECONDS
_LOOK_SECONDS = 0.05


class WrongPage(AssertionError):
    """Raised when a command fails or its output differs from the page."""


Hear = Callable[[Command, Done], None]


def play(
    text: str,
    name: str,
    new_database: Callable[[], str],
    hear: Hear = lambda _command, _done: None,
    *,
    seconds: float = COMMAND_SECONDS,
) -> None:
    """Run every console block of a page, in order, in one session; raise the first difference."""
    blocks = console_blocks(text)
    with ExitStack() as stack:
        directory = stack.enter_context(surroundings.opened_directory())
        player = _Player(name, directory, new_database, hear, seconds, stack)
        if CHECKOUT in blocks[0].surroundings:
            surroundings.copy_checkout(player.here)
            player.environment |= surroundings.uv_environment(directory)
        player.open_session()
        for block in blocks:
            player.play(block)


@dataclass(slots=True)
class _Player:
    name: str
    directory: Path
    new_database: Callable[[], str]
    hear: Hear
    seconds: float
    stack: ExitStack
    environment: dict[str, str] = field(init=False)
    _session: Shell = field(init=False)
    _shells: int = 0
    _terminals: list[Shell] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.environment = surroundings.environment(self.directory)

    @property
    def here(self) -> Path:
        """Return the first directory of the page."""
        return self.directory / "here"

    def open_session(self) -> None:
        """Start the session for all blocks without a separate terminal."""
        self._session = self._new_shell(self.here)

    def play(self, block: Block) -> None:
        """Run one block."""
        for name in block.surroundings:
            self._surround(name)
        if block.after:
            self._wait_for_terminals(block)
        if block.is_terminal:
            self._play_in_terminal(block)
            return
        for command in block.commands:
            done = self._run(command)
            must_fail = block.fails and command is block.commands[-1]
            self._judge(command, done, must_fail=must_fail)

    def _surround(self, name: str) -> None:
        added: dict[str, str] = {}
        if name == POSTGRES:
            added = {"DATABASE_URL": surroundings.as_url(self.new_database())}
        elif name == STAND_INS:
            added = self.stack.enter_context(surroundings.opened_standins(self.directory / "outside"))
        self.environment |= added
        for variable, value in added.items():
            self._session.run(f"export {variable}='{value}'", self.seconds)

    def _new_shell(self, directory: Path) -> Shell:
        self._shells += 1
        notes = self.directory / "notes" / str(self._shells)
        return self.stack.enter_context(Shell(notes, directory, self.environment))

    def _run(self, command: Command) -> Done:
        try:
            done = self._session.run(command.text, self.seconds)
        except ShellEnded:
            raise self._wrong(command, "it ended the shell", self._session.printed) from None
        self.hear(command, done)
        return done

    def _judge(self, command: Command, done: Done, *, must_fail: bool) -> None:
        if done.status is None:
            raise self._wrong(command, f"it has not ended after {self.seconds:.0f} s", done.printed)
        if must_fail and done.status == 0:
            raise self._wrong(command, "it should fail, and does not", done.printed)
        if not must_fail and done.status != 0:
            raise self._wrong(command, f"it ended with status {done.status}", done.printed)
        if command.shown and not is_shown(done.printed, command.shown):
            raise self._wrong(command, "it prints something else", done.printed)

    def _play_in_terminal(self, block: Block) -> None:
        shell = self._new_shell(self._session.directory)
        shown = tuple(line for command in block.commands for line in command.shown)
        typed = Command(block.commands[-1].line, "\n".join(each.text for each in block.commands), shown)
        self._terminals.append(shell)
        shell.begin(typed.text)
        begun, status = time.monotonic(), None
        while not self._is_ready(block, shown, shell.printed):
            # A background process may print after the last command has ended.
            if status not in (None, 0):
                raise self._wrong(typed, f"the terminal ended with status {status}", shell.printed)
            if time.monotonic() - begun > self.seconds:
                raise self._wrong(typed, "the terminal has not printed what the page waits for", shell.printed)
            ended = shell.status(_LOOK_SECONDS)
            status = ended if ended is not None else status
        self.hear(typed, Done(status, shell.printed, time.monotonic() - begun))

    def _wait_for_terminals(self, block: Block) -> None:
        deadline = time.monotonic() + self.seconds
        while not any(block.after in shell.printed for shell in self._terminals):
            if time.monotonic() > deadline:
                printed = "\n".join(shell.printed for shell in self._terminals)
                raise self._wrong(block.commands[0], f"no terminal has printed {block.after!r}", printed)
            time.sleep(_LOOK_SECONDS)

    @staticmethod
    def _is_ready(block: Block, shown: tuple[str, ...], printed: str) -> bool:
        if block.until:
            return block.until in printed
        # A program without output may not have started yet.
        return is_shown(printed, shown, goes_on=True) if shown else bool(printed.strip())

    def _wrong(self, command: Command, why: str, printed: str) -> WrongPage:
        parts = [f"{self.name}:{command.line}: {why}", "the command:", _indented(command.text)]
        if command.shown:
            parts += ["the page shows:", _indented("\n".join(command.shown))]
        return WrongPage("\n".join([*parts, "it printed:", _indented(printed)]))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())

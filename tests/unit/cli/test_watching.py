"""`--watch` on a terminal and in a pipe."""

from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.table import Table

from kingdom.cli.framework.output import CommandOutput, table
from kingdom.cli.framework.watching import count_hidden_rows, watch


class _Enough(Exception):
    """Raised to end the watching."""


@pytest.mark.parametrize(("json", "output"), [(True, "[1]\n[2]\n[11]\n"), (False, "1\n2\n11\n")])
async def test_a_pipe_gets_a_state_only_when_its_relevant_part_has_changed(
    capsys: pytest.CaptureFixture[str],
    json: bool,  # noqa: FBT001 - a case of the test
    output: str,
) -> None:
    seen = iter((1, 1, 2, 12, 2, 11))

    async def look() -> int:
        try:
            return next(seen)
        except StopIteration:
            raise _Enough from None

    with pytest.raises(_Enough):
        await watch(
            CommandOutput(json=json),
            look,
            str,
            lambda number: [number],
            relevant=lambda number: number % 10,
            every_seconds=0,
        )
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(
    ("height", "is_terminal", "seen"), [(10, True, 5), (2, True, 1), (80, True, 40), (10, False, 40)]
)
def test_a_terminal_shows_as_many_of_the_last_rows_as_it_has_room_for(
    height: int,
    is_terminal: bool,  # noqa: FBT001 - a case of the test
    seen: int,
) -> None:
    console = Console(width=80, height=height, force_terminal=is_terminal)

    def view(rows: Sequence[int]) -> Table:
        return table(("id", "why"), [(f"wf-{row}", "because") for row in rows])

    assert 40 - count_hidden_rows(console, range(40), view) == seen
    assert count_hidden_rows(console, (), view) == 0

"""Run pages and show the output of each command: `python -m tests.documentation docs/demo.md`."""

import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench.postgres import PrivateCluster
from tests.documentation.page import Command, UnclearPage
from tests.documentation.playing import WrongPage, play
from tests.documentation.shell import Done


def main() -> int:
    """Run the given pages in order; exit with 1 at the first error."""
    numbers = count()
    with ExitStack() as stack:
        clusters: list[PrivateCluster] = []

        def new_database() -> str:
            if not clusters:
                clusters.append(stack.enter_context(PrivateCluster()))
            return clusters[0].create_database(f"page_{next(numbers)}")

        for name in sys.argv[1:]:
            try:
                play(Path(name).read_text(), name, new_database, _show)
            except (UnclearPage, WrongPage) as wrong:
                _say(f"\n{name}: {wrong}")
                return 1
    return 0


def _show(command: Command, done: Done) -> None:
    _say(f"$ {command.text}\n{done.printed.rstrip()}\n# line {command.line}, {done.seconds:.1f} s")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

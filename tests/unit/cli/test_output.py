"""Tables for people, on terminals of any width."""

import io

from rich.console import Console

from kingdom.cli.framework.output import table

WHY = "a check failed: the tests of the shop do not pass on the branch that was made for it, see the report"


def test_an_id_is_never_broken_and_a_sentence_is_never_cut() -> None:
    ids = ("evt-github-12345678-20260207100000", "└ wf-task-20260207-001")
    rows = [(each, "gen-review: github.pull_request.opened", "IN_PROGRESS", "12.5 min", "$0.50", WHY) for each in ids]
    screen = Console(width=80, file=io.StringIO())
    with screen.capture() as captured:
        screen.print(table(("id", "what", "status", "for", "cost", "why"), rows))
    lines = captured.get().splitlines()
    assert all(any(line.strip().startswith(f"{each} ") for line in lines) for each in ids)
    assert max(map(len, lines)) <= 80
    words = "".join("".join(lines).split())
    assert [words.count(letter) >= WHY.count(letter) for letter in set(WHY) - {" "}].count(False) == 0

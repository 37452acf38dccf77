from pathlib import Path

from kingdom.verify.history import History, HistoryEntry, read_history, with_stored_positions


def test_histories_of_all_processes_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    one, two = History(tmp_path, "one"), History(tmp_path, "two")
    for number, history in enumerate((one, two, one)):
        history.write("acted", number=number)
    one.close()
    two.close()
    entries = read_history(tmp_path)
    assert [(entry.process, entry.what, entry.facts["number"]) for entry in entries] == [
        ("one", "acted", 0),
        ("two", "acted", 1),
        ("one", "acted", 2),
    ]


def test_the_incomplete_last_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    history = History(tmp_path, "one")
    history.write("acted")
    history.close()
    with (tmp_path / "one.jsonl").open("ab") as file:
        file.write(b'{"at": 12, "proc')
    assert [entry.what for entry in read_history(tmp_path)] == ["acted"]


def test_the_positions_of_a_process_become_those_of_the_store() -> None:
    def entry(process: str, what: str, **facts: object) -> HistoryEntry:
        return HistoryEntry(at=1, process=process, what=what, facts=facts)

    history = [
        entry("one", "claimed", stream="carried", token=5, events=[[-9, "a", 1, 0], [-8, "b", 1, 0]]),
        entry("two", "claimed", stream="stored", token=6, events=[[-9, "c", 1, 0]]),
        entry("one", "settled", token=5, outcomes={"-9": "done", "-8": "retry"}),
        entry("two", "settled", token=6, outcomes={"-9": "done"}),
    ]
    changed = with_stored_positions(history, ["carried"], {("carried", "a"): 100})
    assert [each.facts.get("events") or each.facts["outcomes"] for each in changed] == [
        # An event that the store does not have keeps its position.
        [[100, "a", 1, 0], [-8, "b", 1, 0]],
        [[-9, "c", 1, 0]],
        {"100": "done", "-8": "retry"},
        {"-9": "done"},
    ]

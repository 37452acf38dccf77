from pathlib import Path

from kingdom.verify.history import History, read_history


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

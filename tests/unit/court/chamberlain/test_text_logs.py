"""Logs for people: lines stay complete with many writers and during a rotation."""

import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kingdom.court.text_logs import TextLog, format_line, rotate, tee
from tests.patience import PATIENCE_SECONDS

AT = datetime(2026, 2, 7, 10, 0, 0, 5000, tzinfo=UTC)
_LINE = re.compile(r"\S+Z info writer-(?P<writer>\d+): line n=(?P<number>\d+) filler=x{200}")
# Writes until it is stopped, and prints how many lines it wrote.
WRITER = """
import sys
from pathlib import Path
from kingdom.court.text_logs import TextLog
log, end, number = TextLog(Path(sys.argv[1])), Path(sys.argv[2]), 0
while not end.exists():
    log.write(f"writer-{sys.argv[3]}", "line", {"n": number, "filler": "x" * 200})
    number += 1
    if number == 1:
        print("begun", flush=True)
print(number)
"""
ROTATIONS = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "system.log"


def test_a_line_shows_time_level_role_event_and_data() -> None:
    line = format_line(
        "king", "event routed", {"event": "evt-1", "to": ["gen-pr"], "cost": 0.5}, at=AT, level="warning"
    )
    assert line == '2026-02-07T10:00:00.005Z warning king: event routed event=evt-1 to=["gen-pr"] cost=0.5'


def test_a_text_of_several_lines_stays_one_line() -> None:
    line = format_line("king", "one\ntwo\r\\three", {"why": "a b\nc"}, at=AT, level="info")
    assert line == '2026-02-07T10:00:00.005Z info king: one\\ntwo\\r\\\\three why="a b\\nc"'


def test_hostile_text_in_a_log_line_neither_controls_a_screen_nor_begins_a_new_line() -> None:
    hostile = "\x1b[2J\u2028Grüße\x85"
    line = format_line("king", hostile, {"why": hostile, "list": [hostile]}, at=AT, level="info")
    assert line == (
        "2026-02-07T10:00:00.005Z info king: \\x1b[2J\\u2028Grüße\\x85"
        ' why="\\u001b[2J\\u2028Grüße\\u0085" list=["\\u001b[2J\\u2028Grüße\\u0085"]'
    )


def test_lines_are_appended_to_existing_ones(path: Path) -> None:
    for text in ("first", "second"):
        log = TextLog(path, clock=lambda: AT)
        log.write("king", text)
        log.close()
    assert path.read_text() == (
        "2026-02-07T10:00:00.005Z info king: first\n2026-02-07T10:00:00.005Z info king: second\n"
    )


def test_structured_log_lines_are_also_written_to_the_text_log(path: Path) -> None:
    log = TextLog(path, clock=lambda: AT)
    event = {"event": "a job failed", "level": "warning", "at": "now", "job": "health"}
    assert tee(log, "chamberlain")(None, "warning", event) is event
    log.close()
    assert path.read_text() == "2026-02-07T10:00:00.005Z warning chamberlain: a job failed job=health\n"


def test_writing_to_a_log_that_cannot_be_written_raises_no_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no directory")
    TextLog(tmp_path / "logs" / "system.log").write("king", "lost")
    assert (tmp_path / "logs").read_text() == "no directory"


def test_a_log_is_rotated_beyond_its_size_and_not_before(path: Path) -> None:
    path.parent.mkdir()
    assert rotate(path, 10) is None
    path.write_bytes(b"x" * 10)
    assert rotate(path, 10) is None
    path.write_bytes(b"x" * 11)
    assert rotate(path, 10) == 11
    assert (path.exists(), path.with_name("system.log.old").read_bytes()) == (False, b"x" * 11)


def test_a_process_with_the_file_open_writes_to_the_new_one_after_a_rotation(path: Path) -> None:
    log = TextLog(path)
    log.write("king", "before")
    assert rotate(path, 0)
    log.write("king", "after")
    log.close()
    assert ("before" in path.with_name("system.log.old").read_text(), "after" in path.read_text()) == (True, True)


def test_no_line_is_lost_or_incomplete_while_many_write_and_the_file_is_rotated(path: Path, tmp_path: Path) -> None:
    end, kept = tmp_path / "end", 0
    command = [sys.executable, "-c", WRITER, str(path), str(end)]
    writers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)]
    try:
        assert [writer.stdout.readline() for writer in writers if writer.stdout] == ["begun\n"] * 3
        deadline = time.monotonic() + PATIENCE_SECONDS
        while kept < ROTATIONS and time.monotonic() < deadline:
            if rotate(path, 20_000) is not None:
                kept += 1
                # A rotated file is kept until all writers are done, because a late line may still go there.
                path.with_name("system.log.old").rename(path.with_name(f"kept-{kept}"))
            time.sleep(0.001)
    finally:
        end.touch()
    written = {str(n): int(writer.communicate()[0]) for n, writer in enumerate(writers)}
    found = [_LINE.fullmatch(each) for file in path.parent.iterdir() for each in file.read_text().splitlines()]
    assert Counter(each["writer"] for each in found if each) == written
    assert (all(found), kept) == (True, ROTATIONS)


def test_only_one_of_many_concurrent_rotations_happens(path: Path) -> None:
    path.parent.mkdir()
    for _ in range(20):
        path.write_bytes(b"x" * 5000)
        with ThreadPoolExecutor(4) as threads:
            sizes = list(threads.map(lambda _: rotate(path, 100), range(4)))
        assert sorted(size or 0 for size in sizes) == [0, 0, 0, 5000]
        assert path.with_name("system.log.old").stat().st_size == 5000

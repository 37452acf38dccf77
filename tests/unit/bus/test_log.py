from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import LogCursor

cursors = st.builds(LogCursor, st.integers(0, 2**64), st.integers(0, 2**63))


@given(cursors)
def test_a_cursor_is_read_back_from_its_text(cursor: LogCursor) -> None:
    assert LogCursor.parse(str(cursor)) == cursor


@given(cursors, cursors)
def test_cursors_are_ordered_by_transaction_and_then_by_entry(one: LogCursor, other: LogCursor) -> None:
    assert (one < other) == ((one.epoch, one.sequence) < (other.epoch, other.sequence))


def test_a_reader_begins_before_everything() -> None:
    assert LogCursor() <= LogCursor(0, 0) < LogCursor(0, 1) < LogCursor(1, 0)

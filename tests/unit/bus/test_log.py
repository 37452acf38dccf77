from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import LogCursor

cursors = st.builds(LogCursor, st.integers(0, 2**64), st.integers(0, 2**63))


@given(cursors)
def test_a_cursor_is_read_back_from_its_text(cursor: LogCursor) -> None:
    assert LogCursor.parse(str(cursor)) == cursor


@given(cursors, cursors)
def test_cursors_are_ordered_by_entry_regardless_of_their_transactions(one: LogCursor, other: LogCursor) -> None:
    assert (one < other) == (one.sequence < other.sequence)
    assert (one <= other) == (one.sequence <= other.sequence)
    assert (one > other, one >= other) == (other < one, other <= one)


def test_the_first_cursor_is_before_every_entry() -> None:
    assert LogCursor() <= LogCursor(7, 0) < LogCursor(3, 1) < LogCursor(0, 2)

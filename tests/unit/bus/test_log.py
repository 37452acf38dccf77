from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import Cursor

cursors = st.builds(Cursor, st.integers(0, 2**64), st.integers(0, 2**63))


@given(cursors)
def test_a_cursor_is_read_back_from_its_text(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor


@given(cursors, cursors)
def test_cursors_are_ordered_by_transaction_and_then_by_entry(one: Cursor, other: Cursor) -> None:
    assert (one < other) == ((one.epoch, one.sequence) < (other.epoch, other.sequence))


def test_a_reader_begins_before_everything() -> None:
    assert Cursor() <= Cursor(0, 0) < Cursor(0, 1) < Cursor(1, 0)

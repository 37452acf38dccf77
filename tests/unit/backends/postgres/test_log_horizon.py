"""How far the log can be read while transactions are open."""

from datetime import UTC, datetime, timedelta

from kingdom.backends.postgres.log_horizon import LogHorizon, LogWriters

SERVER = datetime(2026, 11, 17, tzinfo=UTC)


def horizon_after(*observations: LogWriters) -> int | None:
    horizon = LogHorizon()
    for seen in observations:
        horizon.observe(seen)
    return horizon.sequence


def seen(last: int, server: datetime = SERVER, **announced: int | None) -> LogWriters:
    return LogWriters(server, last, announced)


def test_without_open_writers_the_log_is_complete_up_to_the_last_number() -> None:
    assert horizon_after(seen(7)) == 7


def test_an_open_writer_holds_back_only_entries_after_the_number_that_it_announced() -> None:
    assert horizon_after(seen(7, a=3, b=5)) == 3
    assert horizon_after(seen(7, a=3, b=5), seen(9, b=5)) == 5


def test_nothing_is_known_while_a_writer_has_announced_no_number() -> None:
    assert horizon_after(seen(7, old=None)) is None


def test_once_the_unknown_writers_have_ended_the_log_is_complete_up_to_the_number_of_that_time() -> None:
    assert horizon_after(seen(7, old=None), seen(12, old=None, other=None)) is None
    assert horizon_after(seen(7, old=None), seen(12, other=None)) == 7
    # The next writer delays the next step only.
    assert horizon_after(seen(7, old=None), seen(12, other=None), seen(15, other=None), seen(20)) == 20


def test_a_writer_that_announces_a_number_late_may_have_written_below_it() -> None:
    assert horizon_after(seen(7, old=None), seen(12, old=9)) is None
    assert horizon_after(seen(7, old=None), seen(12, old=9), seen(12)) == 12


def test_the_horizon_never_goes_back() -> None:
    assert horizon_after(seen(7), seen(8, late=3)) == 7


def test_another_server_has_its_own_numbers() -> None:
    later = SERVER + timedelta(hours=1)
    assert horizon_after(seen(100), seen(90, later, a=80)) == 80
    assert horizon_after(seen(100), seen(90, later, old=None)) is None

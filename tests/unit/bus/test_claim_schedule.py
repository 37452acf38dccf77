"""When a worker claims from each of its streams."""

from kingdom.bus.worker.claim_schedule import ClaimSchedule


def test_every_stream_is_due_at_first_and_again_after_the_polling_period() -> None:
    schedule = ClaimSchedule(["a", "b"], poll_seconds=10)
    assert schedule.is_due("a", 100.0)
    schedule.postpone("a", 100.0)
    assert schedule.is_due("b", 100.0)
    assert not schedule.is_due("a", 107.9)
    assert schedule.is_due("a", 112.1)


def test_a_hint_makes_only_its_own_stream_due() -> None:
    schedule = ClaimSchedule(["a", "b"], poll_seconds=10)
    for stream in ("a", "b"):
        schedule.postpone(stream, 100.0)
    schedule.hint("a")
    assert schedule.is_due("a", 100.0)
    assert not schedule.is_due("b", 100.0)


def test_a_worker_waits_until_the_first_of_its_streams_is_due() -> None:
    schedule = ClaimSchedule(["a", "b"], poll_seconds=10)
    schedule.postpone("a", 100.0)
    schedule.postpone("b", 103.0)
    assert 5.0 <= schedule.seconds_until_due(["a", "b"], 103.0) <= 9.0
    assert 8.0 <= schedule.seconds_until_due(["b"], 103.0) <= 12.0
    assert schedule.seconds_until_due(["a", "b"], 200.0) == 0.0

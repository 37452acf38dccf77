"""The streams of the court."""

from datetime import timedelta

import pytest

from kingdom.bus import Stream
from kingdom.court.streams import PETITION_STREAM, STREAMS


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_no_stream_waits_longer_than_five_minutes_before_the_next_attempt(stream: Stream) -> None:
    assert timedelta(seconds=60) <= stream.retry.cap <= timedelta(seconds=300)


def test_a_petition_is_tried_for_more_than_an_hour_and_a_half() -> None:
    retry = PETITION_STREAM.retry
    waits = [retry.delay(attempt, chance=0.5) for attempt in range(1, retry.max_attempts)]
    assert sum(waits, timedelta()) > timedelta(minutes=90)

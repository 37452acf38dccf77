from prometheus_client import CollectorRegistry, Histogram, generate_latest

from kingdom.bus.metrics import BatchHistogram


def test_durations_that_are_added_together_count_like_single_ones() -> None:
    seconds = [0.0001, 0.005, 0.0051, 0.3, 0.3, 11.0]
    together, one_by_one = CollectorRegistry(), CollectorRegistry()
    many = BatchHistogram("took", "Time", ["stream"], registry=together).labels("jobs")
    single = Histogram("took", "Time", ["stream"], registry=one_by_one).labels("jobs")
    many.observe_all(seconds)
    many.observe_all([])
    for each in seconds:
        single.observe(each)

    def shown(registry: CollectorRegistry) -> list[str]:
        return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]

    assert shown(together) == shown(one_by_one)
    assert 'took_bucket{le="0.005",stream="jobs"} 2.0' in shown(together)

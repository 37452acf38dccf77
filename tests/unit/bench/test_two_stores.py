from bench.two_stores.judge import Verdict, judge

PUBLISHED = {"a": [0, 2, 4], "b": [1, 3]}


def test_what_arrived_once_and_in_order_is_good() -> None:
    verdict = judge(PUBLISHED, {"a": [0, 2, 4], "b": [1, 3]})
    assert verdict == Verdict(applied=5, lost=0, twice=0, disordered=0)
    assert verdict.is_good


def test_lost_events_are_counted_also_those_of_a_key_that_never_arrived() -> None:
    assert judge(PUBLISHED, {"a": [0, 4]}) == Verdict(applied=2, lost=3, twice=0, disordered=0)


def test_events_that_were_applied_again_are_counted_and_are_not_out_of_order() -> None:
    assert judge(PUBLISHED, {"a": [0, 2, 0, 2, 4], "b": [1, 3]}) == Verdict(applied=7, lost=0, twice=2, disordered=0)


def test_a_key_out_of_order_is_counted() -> None:
    verdict = judge(PUBLISHED, {"a": [0, 4, 2], "b": [1, 3]})
    assert verdict == Verdict(applied=5, lost=0, twice=0, disordered=1)
    assert not verdict.is_good

from kingdom.backends.kafka.inbox import PartitionOwnership


def test_settled_offsets_join_the_handled_ranges_that_they_touch() -> None:
    taken = PartitionOwnership(epoch=1, handled=((0, 5),), takeovers=2)
    behind_a_gap = taken.settle([(8, 9), (7, 8)])
    assert behind_a_gap == PartitionOwnership(epoch=1, handled=((0, 5), (7, 9)), takeovers=0)
    assert not behind_a_gap.is_handled(6)
    assert behind_a_gap.settle([(5, 6), (6, 7), (9, 12)]).handled == ((0, 12),)


def test_the_first_settled_offset_of_a_new_partition_extends_its_empty_range() -> None:
    assert PartitionOwnership(epoch=1, handled=((0, 0),), takeovers=0).settle([(0, 1)]).handled == ((0, 1),)

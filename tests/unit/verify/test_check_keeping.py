from dataclasses import replace

import pytest

from kingdom.verify.checker import check
from kingdom.verify.violation import ViolationKind
from tests.unit.verify.trace import Trace, applied, described, stored


def test_a_retention_removes_only_ended_items() -> None:
    trace = Trace().published(described("a"), described("b"))
    traces = [applied("a", record="ra", state="kept"), applied("b", record="rb", state="over")]
    evidence = trace.left([stored("a", 1), stored("b", 2)], *traces)
    assert check(replace(evidence, records={"ra": "kept"})) == []
    assert [finding.kind for finding in check(evidence)] == [ViolationKind.REMOVED]


@pytest.mark.parametrize("read", ["a", "aab", "abb", "ba", ""])
def test_a_reader_of_the_log_must_get_every_entry_once_and_in_order(read: str) -> None:
    trace = Trace().published(described("a"), described("b"))
    evidence = trace.left([stored("a", 1), stored("b", 2)], applied("a"), applied("b"))
    assert check(replace(evidence, read=[applied("a"), applied("b")])) == []
    wrong = replace(evidence, read=[applied(event) for event in read])
    assert {finding.kind for finding in check(wrong)} == {ViolationKind.MISREAD}

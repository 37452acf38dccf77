"""Check that the retention removes no record too early, and that a reader of the log gets every entry once."""

from collections import Counter
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation, ViolationKind


def removed_records(evidence: Evidence) -> Iterator[Violation]:
    """Find records that were removed although their state is not final."""
    for facts in evidence.applied:
        if facts.get("state") == "kept" and evidence.records.get(facts["record"]) != "kept":
            yield Violation(ViolationKind.REMOVED, facts["record"], "written by an applied reaction, but removed")


def log_reading_errors(evidence: Evidence) -> Iterator[Violation]:
    """Find entries that a reader of the log missed, or got twice or in the wrong order."""
    if evidence.read is None:
        return
    written = [(facts["stream"], facts["event"], facts["token"]) for facts in evidence.applied]
    read = [(facts["stream"], facts["event"], facts["token"]) for facts in evidence.read]
    missed, unknown = Counter(written) - Counter(read), Counter(read) - Counter(written)
    for entry, times in missed.items():
        yield Violation(ViolationKind.MISREAD, entry[1], f"missed {times} times by the reader of the log")
    for entry, times in unknown.items():
        yield Violation(ViolationKind.MISREAD, entry[1], f"read {times} times too often by the reader of the log")
    if not missed and not unknown and read != written:
        first = next(index for index, pair in enumerate(zip(read, written, strict=True)) if pair[0] != pair[1])
        yield Violation(ViolationKind.MISREAD, read[first][1], f"read in another order than in the log, at {first}")

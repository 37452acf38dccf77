"""What is kept is there: records that no retention may remove, and every entry of the log for who follows it."""

from collections import Counter
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation, ViolationKind


def removed(evidence: Evidence) -> Iterator[Violation]:
    """Look for records that are not over, and are gone."""
    for facts in evidence.applied:
        if facts.get("state") == "kept" and evidence.records.get(facts["record"]) != "kept":
            yield Violation(
                ViolationKind.REMOVED, facts["record"], "written by an applied reaction, and not there any more"
            )


def misread(evidence: Evidence) -> Iterator[Violation]:
    """Compare what a reader got that followed the log by cursor with the log as it is in the end."""
    if evidence.read is None:
        return
    written = [(facts["stream"], facts["event"], facts["token"]) for facts in evidence.applied]
    read = [(facts["stream"], facts["event"], facts["token"]) for facts in evidence.read]
    missed, unknown = Counter(written) - Counter(read), Counter(read) - Counter(written)
    for entry, times in missed.items():
        yield Violation(ViolationKind.MISREAD, entry[1], f"missed {times} times by who follows the log")
    for entry, times in unknown.items():
        yield Violation(ViolationKind.MISREAD, entry[1], f"read {times} times too often by who follows the log")
    if not missed and not unknown and read != written:
        first = next(index for index, pair in enumerate(zip(read, written, strict=True)) if pair[0] != pair[1])
        yield Violation(
            ViolationKind.MISREAD, read[first][1], f"read in another order than it stands in the log, at {first}"
        )

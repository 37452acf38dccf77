"""Compare the entries that clients got with the log."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.stream.clients import LogClient, Page, StreamedEntry
from kingdom.bus.log import LoggedEntry


def complaints(
    log: Sequence[LoggedEntry], clients: Sequence[LogClient], pages: Sequence[Page], written: Mapping[str, int]
) -> Iterator[str]:
    """Yield everything that is wrong."""
    cursors = [str(each.cursor) for each in log]
    numbers = Counter((each.entry.data["writer"], each.entry.data["number"]) for each in log)
    wanted = Counter({(name, number): 1 for name, last in written.items() for number in range(1, last + 1)})
    if numbers != wanted:
        yield f"the log has {numbers.total()} entries, and the writers wrote {wanted.total()}"
    for number, client in enumerate(clients):
        yield from (f"client {number}: {words}" for words in _differences(client.held, cursors))
        yield from (f"client {number}: {words}" for words in _inversions(client.held))
        if client.resets:
            yield f"client {number} was told {client.resets} times to start again"
    for number, page in enumerate(pages):
        yield from (f"page {number}: {words}" for words in page.gaps)
        if page.shown != dict(written):
            yield f"page {number} shows {page.shown}, and the records are {dict(written)}"


def _differences(held: Sequence[StreamedEntry], cursors: Sequence[str]) -> Iterator[str]:
    got = [each.cursor for each in held]
    counts = Counter(got)
    if missing := set(cursors) - counts.keys():
        yield f"gap: {len(missing)} entries of the log are missing"
    if double := [cursor for cursor, count in counts.items() if count > 1]:
        yield f"double: {len(double)} entries came more than once"
    if unknown := counts.keys() - set(cursors):
        yield f"{len(unknown)} entries are not in the log"
    if not (missing or double or unknown) and got != list(cursors):
        yield "the order is not that of the log"


def _inversions(held: Sequence[StreamedEntry]) -> Iterator[str]:
    """Report entries that arrived before a cause: before an entry that their writer had already read."""
    seen: dict[str, int] = {}
    found = 0
    for each in held:
        found += any(seen.get(writer, 0) < number for writer, number in each.data.knows.items())
        seen[each.data.writer] = max(each.data.number, seen.get(each.data.writer, 0))
    if found:
        yield f"{found} effects came before their causes"

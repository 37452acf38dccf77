"""Which ids given by callers a file of ended events holds: an index that answers with one read, however long that is.

It is a hash table of pages. Of each id a digest is kept, in the page that the digest names; where that is full, the
table gets twice as many pages. The lines are the truth: after a loss of power the index is made from them again.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b

import msgspec

from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.tree.file_formats import careful
from kingdom.backends.files.tree.layout import index_of

_DIGEST = 16
_PAGE = 4096
_FREE = bytes(_DIGEST)
# So full a new table is on average: then hardly any page is full at once.
_COMFORTABLE = _PAGE // _DIGEST // 2


class _Event(msgspec.Struct, rename={"event_id": "eventId"}):
    event_id: str


class _Line(msgspec.Struct, rename="camel"):
    event: _Event
    event_id_given: bool = False


_read = careful(msgspec.json.Decoder(_Line))


def has_ended(lines: str, event_id: str, disk: Disk) -> bool:
    """Tell whether a file of ended events has this one; makes the index that an earlier version did not."""
    if not (pages := _pages(lines)):
        index_anew(lines, disk)
        pages = _pages(lines)
    digest = _digest(event_id)
    (page,) = _read_pages(lines, [_number(digest, pages)])
    return digest in page


def add_ended(lines: str, event_ids: Iterable[str], disk: Disk) -> None:
    """Note ids whose lines have just been added, if any; to note one again changes nothing."""
    if not (pages := _pages(lines)):
        index_anew(lines, disk)
        return
    if not (digests := list(map(_digest, event_ids))):
        return
    by_page: dict[int, list[bytes]] = {}
    for digest in digests:
        by_page.setdefault(_number(digest, pages), []).append(digest)
    changes: dict[int, bytes] = {}
    for (number, wanted), page in zip(by_page.items(), _read_pages(lines, by_page), strict=True):
        new = b"".join(digest for digest in wanted if digest not in page)
        used = _used(page)
        if used + len(new) > _PAGE:
            _write(lines, [*_digests(lines, pages), *digests], pages * 2, disk)
            return
        changes[number * _PAGE + used] = new
    disk.overwrite(index_of(lines), changes)


def index_anew(lines: str, disk: Disk) -> None:
    """Make the index of a file of ended events from its lines."""
    _write(lines, map(_digest, _ids_in(lines)), 1, disk)


def _write(lines: str, found: Iterable[bytes], pages: int, disk: Disk) -> None:
    """Write a table of at least so many pages."""
    digests = list(dict.fromkeys(found))
    while len(digests) > pages * _COMFORTABLE or (table := _table(digests, pages)) is None:
        pages *= 2
    disk.make_directory(os.path.dirname(index_of(lines)))
    new = f"{index_of(lines)}.new"
    disk.create(new, table)
    disk.rename(new, index_of(lines))


def _digests(lines: str, pages: int) -> Iterator[bytes]:
    for page in _read_pages(lines, range(pages)):
        slots = (page[at : at + _DIGEST] for at in range(0, _PAGE, _DIGEST))
        yield from (digest for digest in slots if digest != _FREE)


def _table(digests: list[bytes], pages: int) -> bytes | None:
    """Return digests as a table; None where a page does not hold what belongs into it."""
    found: list[list[bytes]] = [[] for _ in range(pages)]
    for digest in digests:
        found[_number(digest, pages)].append(digest)
    if max(map(len, found)) > _PAGE // _DIGEST:
        return None
    return b"".join(b"".join(page).ljust(_PAGE, b"\x00") for page in found)


def _ids_in(lines: str) -> Iterator[str]:
    with open(lines, "rb") as file:
        for line in file:
            # A line that was edited by hand, or is cut off, is passed over.
            with suppress(msgspec.MsgspecError):
                read = _read(line)
                if read.event_id_given:
                    yield read.event.event_id


def _pages(lines: str) -> int:
    """Return how many pages the index has; 0 where there is none that could be used."""
    try:
        pages, rest = divmod(os.stat(index_of(lines)).st_size, _PAGE)
    except FileNotFoundError:
        return 0
    return 0 if rest or pages & (pages - 1) else pages


def _read_pages(lines: str, numbers: Iterable[int]) -> Iterator[bytes]:
    descriptor = os.open(index_of(lines), os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number in numbers:
            yield os.pread(descriptor, _PAGE, number * _PAGE)
    finally:
        os.close(descriptor)


def _used(page: bytes) -> int:
    """Return how many bytes of a page hold digests, the last of which may end in zeros itself."""
    free = page.find(_FREE)
    return _PAGE if free < 0 else -(-free // _DIGEST) * _DIGEST


def _digest(event_id: str) -> bytes:
    return blake2b(event_id.encode(), digest_size=_DIGEST).digest()


def _number(digest: bytes, pages: int) -> int:
    return int.from_bytes(digest[:8], "little") & (pages - 1)

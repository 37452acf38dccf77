"""The index of the event ids in an archive file. Only ids that publishers chose are in it. A lookup reads one page.

The index is a hash table of pages with one digest per id. If a page is full, the table gets twice as many pages. After
a power loss the index is rebuilt from the lines of the archive.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b

import msgspec

from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.tree.file_formats import safe_decoder
from kingdom.backends.files.tree.layout import archive_index_file

# The sizes of a digest and of a page, in bytes.
_DIGEST = 16
_PAGE = 4096
_FREE = bytes(_DIGEST)
# A new table is half full on average, so that few pages are full.
_DIGESTS_PER_NEW_PAGE = _PAGE // _DIGEST // 2


class _EventId(msgspec.Struct, rename={"event_id": "eventId"}):
    event_id: str


class _ArchivedId(msgspec.Struct, rename="camel"):
    event: _EventId
    event_id_given: bool = False


_decode_line = safe_decoder(msgspec.json.Decoder(_ArchivedId))


def contains_id(archive: str, event_id: str, disk: Disk) -> bool:
    """Return whether an archive file contains an id. Build the index if it does not exist."""
    if not (pages := _count_pages(archive)):
        rebuild_index(archive, disk)
        pages = _count_pages(archive)
    digest = _digest(event_id)
    (page,) = _read_pages(archive, [_page_number(digest, pages)])
    return digest in page


def add_archived_ids(archive: str, event_ids: Iterable[str], disk: Disk) -> None:
    """Add the event ids of lines that were just appended. Adding an id twice has no further effect."""
    if not (pages := _count_pages(archive)):
        rebuild_index(archive, disk)
        return
    if not (digests := list(map(_digest, event_ids))):
        return
    by_page: dict[int, list[bytes]] = {}
    for digest in digests:
        by_page.setdefault(_page_number(digest, pages), []).append(digest)
    changes: dict[int, bytes] = {}
    for (number, wanted), page in zip(by_page.items(), _read_pages(archive, by_page), strict=True):
        new = b"".join(digest for digest in wanted if digest not in page)
        used = _used_bytes(page)
        if used + len(new) > _PAGE:
            _write(archive, [*_digests(archive, pages), *digests], pages * 2, disk)
            return
        changes[number * _PAGE + used] = new
    disk.overwrite(archive_index_file(archive), changes)


def rebuild_index(archive: str, disk: Disk) -> None:
    """Build the index of an archive file from its lines."""
    _write(archive, map(_digest, _ids_in(archive)), 1, disk)


def _write(archive: str, found: Iterable[bytes], pages: int, disk: Disk) -> None:
    """Write a table of digests with at least `pages` pages."""
    digests = list(dict.fromkeys(found))
    while len(digests) > pages * _DIGESTS_PER_NEW_PAGE or (table := _table(digests, pages)) is None:
        pages *= 2
    disk.make_directory(os.path.dirname(archive_index_file(archive)))
    new = f"{archive_index_file(archive)}.new"
    disk.create(new, table)
    disk.rename(new, archive_index_file(archive))


def _digests(archive: str, pages: int) -> Iterator[bytes]:
    for page in _read_pages(archive, range(pages)):
        slots = (page[at : at + _DIGEST] for at in range(0, _PAGE, _DIGEST))
        yield from (digest for digest in slots if digest != _FREE)


def _table(digests: list[bytes], pages: int) -> bytes | None:
    """Return digests as a table with this number of pages; None if a page would overflow."""
    found: list[list[bytes]] = [[] for _ in range(pages)]
    for digest in digests:
        found[_page_number(digest, pages)].append(digest)
    if max(map(len, found)) > _PAGE // _DIGEST:
        return None
    return b"".join(b"".join(page).ljust(_PAGE, b"\x00") for page in found)


def _ids_in(archive: str) -> Iterator[str]:
    with open(archive, "rb") as file:
        for line in file:
            # Skip a damaged or incomplete line.
            with suppress(msgspec.MsgspecError):
                read = _decode_line(line)
                if read.event_id_given:
                    yield read.event.event_id


def _count_pages(archive: str) -> int:
    """Return how many pages the index has; 0 if there is no usable index."""
    try:
        pages, rest = divmod(os.stat(archive_index_file(archive)).st_size, _PAGE)
    except FileNotFoundError:
        return 0
    return 0 if rest or pages & (pages - 1) else pages


def _read_pages(archive: str, numbers: Iterable[int]) -> Iterator[bytes]:
    descriptor = os.open(archive_index_file(archive), os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number in numbers:
            yield os.pread(descriptor, _PAGE, number * _PAGE)
    finally:
        os.close(descriptor)


def _used_bytes(page: bytes) -> int:
    """Return how many bytes of a page are used. Round up to whole digests, because the last digest may end in zeros."""
    free = page.find(_FREE)
    return _PAGE if free < 0 else -(-free // _DIGEST) * _DIGEST


def _digest(event_id: str) -> bytes:
    return blake2b(event_id.encode(), digest_size=_DIGEST).digest()


def _page_number(digest: bytes, pages: int) -> int:
    return int.from_bytes(digest[:8], "little") & (pages - 1)

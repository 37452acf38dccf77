"""The file of an export: a header, one item per line, and a footer that proves that nothing is missing.

The file has JSON lines, and is compressed if its name ends with `.gz`. The footer has the number of items and a digest
of all lines before it.
"""

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec

from kingdom.errors import Permanent
from kingdom.storage.transfer import AnyItem, ItemCounter, ItemCounts, Manifest

FORMAT = "kingdom-storage"
VERSION = 1
_GZIP_SUFFIX = ".gz"
# A higher level is slower and saves little.
_GZIP_LEVEL = 6
# Advice at the end of error messages.
_EXPORT_AGAIN = "export it again"
_CHOOSE_ANOTHER = "choose a file in an existing, writable directory with enough space"
# Decoding a text that is not UTF-8 raises a UnicodeError.
_UNREADABLE = (msgspec.MsgspecError, UnicodeError)
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_decode_item = msgspec.json.Decoder(AnyItem).decode


class ExportHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of an export. `source` is the kind of store that was exported."""

    format: str
    version: int
    exported_at: datetime
    source: str = msgspec.field(name="from")
    manifest: Manifest


class _FormatVersion(msgspec.Struct):
    """The header fields that every format version has."""

    format: str
    version: int


class _Footer(msgspec.Struct, frozen=True, kw_only=True, tag_field="item", tag="end"):
    """The last line of an export."""

    census: ItemCounts
    sha256: str


_decode_version = msgspec.json.Decoder(_FormatVersion).decode
_decode_header = msgspec.json.Decoder(ExportHeader).decode
_decode_footer = msgspec.json.Decoder(_Footer).decode


@contextmanager
def new_export(path: Path, source: str, manifest: Manifest, now: datetime) -> Iterator[Callable[[AnyItem], None]]:
    """Write an export: yield a function that adds an item, and give the file its name when it is complete."""
    with _translate_file_errors(path, _CHOOSE_ANOTHER):
        if path.exists():
            raise _already_exists(path)
    with (
        _translate_file_errors(path, _CHOOSE_ANOTHER),
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as part,
    ):
        try:
            with _compressed(part, path) as file:
                digest, counter = hashlib.sha256(), ItemCounter()

                def write(line: bytes) -> None:
                    digest.update(line)
                    file.write(line)

                def add(item: AnyItem) -> None:
                    counter.add(item)
                    write(_encode(item) + b"\n")

                header = ExportHeader(format=FORMAT, version=VERSION, exported_at=now, source=source, manifest=manifest)
                write(_encode(header) + b"\n")
                yield add
                _require_equal(path, manifest.census, counter.counts)
                write(_encode(_Footer(census=counter.counts, sha256=digest.hexdigest())) + b"\n")
            _finish(part, path)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def read_header(path: Path) -> ExportHeader:
    """Return the header of an export, or raise Permanent if this version cannot read the file."""
    with _open_export(path) as file:
        line = file.readline()
    try:
        found = _decode_version(line)
    except _UNREADABLE:
        found = _FormatVersion("", 0)
    if found.format != FORMAT:
        raise Permanent(f"{path} was not written by `kingdom storage export`")
    if found.version != VERSION:
        raise Permanent(
            f"{path} has format version {found.version}, but this Kingdom reads version {VERSION}: use the version"
            " that wrote it, or a newer one"
        )
    try:
        return _decode_header(line)
    except _UNREADABLE as error:
        raise Permanent(f"the header of {path} cannot be read: {error}; {_EXPORT_AGAIN}") from error


def read_items(path: Path) -> Iterator[AnyItem]:
    """Yield all items of an export. Raise Permanent if the file was truncated or changed.

    Some damage is found only at the end, so read all items once before you store any of them.
    """
    announced = read_header(path).manifest.census
    digest, counter = hashlib.sha256(), ItemCounter()
    with _open_export(path) as file:
        digest.update(file.readline())
        for number, line in enumerate(file, start=2):
            if line.startswith(b'{"item":"end"'):
                end = _decode_line(_decode_footer, line, path, number)
                if end.sha256 != digest.hexdigest() or file.read(1):
                    raise Permanent(
                        f"{path} was changed after it was written: its digest does not match; {_EXPORT_AGAIN}"
                    )
                _require_equal(path, announced, counter.counts)
                _require_equal(path, end.census, counter.counts)
                return
            item = _decode_line(_decode_item, line, path, number)
            digest.update(line)
            counter.add(item)
            yield item
    raise Permanent(f"{path} ends too early, after {counter.counts} of {announced}: it was truncated; {_EXPORT_AGAIN}")


def _decode_line(decode: Callable[[bytes], T], line: bytes, path: Path, number: int) -> T:
    try:
        return decode(line)
    except _UNREADABLE as error:
        what = "was changed" if line.endswith(b"\n") else "ends too early: it was truncated"
        raise Permanent(f"{path} {what}, line {number} cannot be read: {error}; {_EXPORT_AGAIN}") from error


def _require_equal(path: Path, announced: ItemCounts, counted: ItemCounts) -> None:
    if difference := counted.difference(announced):
        raise Permanent(f"{path} has other counts than its first line says: {difference}; {_EXPORT_AGAIN}")


@contextmanager
def _open_export(path: Path) -> Iterator[IO[bytes]]:
    with (
        _translate_file_errors(path, "check that you may read it"),
        gzip.open(path) if path.suffix == _GZIP_SUFFIX else path.open("rb") as file,
    ):
        yield cast("IO[bytes]", file)


@contextmanager
def _compressed(part: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != _GZIP_SUFFIX:
        yield part
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=part) as compressed:
        yield cast("IO[bytes]", compressed)


def _finish(part: IO[bytes], path: Path) -> None:
    """Sync the complete file and give it its name.

    A crash of the machine leaves the whole file or no file. Only on a file system without hard links, the file can also
    be empty.
    """
    part.flush()
    os.fsync(part.fileno())
    _give_name(Path(part.name), path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _give_name(part: Path, path: Path) -> None:
    """Give a file its name. Unlike a rename, do not replace a file that another process has created meanwhile."""
    try:
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError:
            # This file system has no hard links. Reserve the name with an empty file, then replace that file.
            path.touch(exist_ok=False)
            try:
                part.rename(path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        else:
            part.unlink()
    except FileExistsError as error:
        raise _already_exists(path) from error


def _already_exists(path: Path) -> Permanent:
    return Permanent(f"{path} already exists: choose another file, or remove it first")


@contextmanager
def _translate_file_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn errors of the file system and of gzip into Permanent errors that name the file."""
    try:
        yield
    except EOFError as error:
        raise Permanent(f"{path} ends too early: it was truncated; {_EXPORT_AGAIN}") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise Permanent(f"{path} is damaged: {error}; {_EXPORT_AGAIN}") from error
    except OSError as error:
        raise Permanent(f"{path} cannot be used: {error.strerror or error}; {advice}") from error

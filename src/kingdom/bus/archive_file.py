"""The file between two stores: a header, one thing per line, and an end that proves that nothing is missing.

JSON lines, compressed where the name ends with `.gz`. The last line has the counts and a digest of all lines before it.
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

from kingdom.bus.moving import AnyItem, Census, Manifest, Tally
from kingdom.errors import Permanent

FORMAT = "kingdom-storage"
VERSION = 1
_GZIP_SUFFIX = ".gz"
# Beyond this a file gets slower to write and hardly smaller.
_GZIP_LEVEL = 6
_AGAIN = "export it again"
_ELSEWHERE = "name a file in a directory that exists, that you may write to and that has room"
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_decode_item = msgspec.json.Decoder(AnyItem).decode


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line: what the archive announces."""

    format: str
    version: int
    exported_at: datetime
    source: str = msgspec.field(name="from")
    manifest: Manifest


class _Kind(msgspec.Struct):
    """The part of a header that every version has."""

    format: str
    version: int


class _End(msgspec.Struct, frozen=True, kw_only=True, tag_field="item", tag="end"):
    census: Census
    sha256: str


_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_header = msgspec.json.Decoder(Header).decode
_decode_end = msgspec.json.Decoder(_End).decode


@contextmanager
def new_archive(path: Path, source: str, manifest: Manifest, now: datetime) -> Iterator[Callable[[AnyItem], None]]:
    """Write an archive: the block gets the function that adds an item; the file has its name only once it is whole."""
    with _naming(path, _ELSEWHERE):
        if path.exists():
            raise _exists(path)
    with (
        _naming(path, _ELSEWHERE),
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as part,
    ):
        try:
            with _packed(part, path) as file:
                digest, tally = hashlib.sha256(), Tally()

                def write(line: bytes) -> None:
                    digest.update(line)
                    file.write(line)

                def add(item: AnyItem) -> None:
                    tally.add(item)
                    write(_encode(item) + b"\n")

                header = Header(format=FORMAT, version=VERSION, exported_at=now, source=source, manifest=manifest)
                write(_encode(header) + b"\n")
                yield add
                _compare(path, manifest.census, tally.census)
                write(_encode(_End(census=tally.census, sha256=digest.hexdigest())) + b"\n")
            _keep(part, path)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def read_header(path: Path) -> Header:
    """Return what an archive announces, or refuse what is none that this version can read."""
    with _opened(path) as file:
        line = file.readline()
    try:
        kind = _decode_kind(line)
    except msgspec.MsgspecError:
        kind = _Kind("", 0)
    if kind.format != FORMAT:
        raise Permanent(f"{path} is no archive of `kingdom storage export`")
    if kind.version != VERSION:
        raise Permanent(
            f"{path} is written in version {kind.version} of the format, this Kingdom reads {VERSION}: use the Kingdom"
            " that wrote it, or a newer one"
        )
    try:
        return _decode_header(line)
    except msgspec.MsgspecError as error:
        raise Permanent(f"the header of {path} cannot be read: {error}; {_AGAIN}") from error


def read_items(path: Path) -> Iterator[AnyItem]:
    """Yield everything in an archive; raises, at its end at the latest, if it was cut off or changed.

    Who reads it to the end has verified it: do that once before anything is written.
    """
    announced = read_header(path).manifest.census
    digest, tally = hashlib.sha256(), Tally()
    with _opened(path) as file:
        digest.update(file.readline())
        for number, line in enumerate(file, start=2):
            if line.startswith(b'{"item":"end"'):
                end = _read(_decode_end, line, path, number)
                if end.sha256 != digest.hexdigest() or file.read(1):
                    raise Permanent(f"{path} was changed after it was written: its digest is another one; {_AGAIN}")
                _compare(path, announced, tally.census)
                _compare(path, end.census, tally.census)
                return
            item = _read(_decode_item, line, path, number)
            digest.update(line)
            tally.add(item)
            yield item
    raise Permanent(f"{path} ends too early, after {tally.census} of {announced}: it was cut off; {_AGAIN}")


def _read(decode: Callable[[bytes], T], line: bytes, path: Path, number: int) -> T:
    try:
        return decode(line)
    except msgspec.MsgspecError as error:
        what = "was changed" if line.endswith(b"\n") else "ends too early: it was cut off"
        raise Permanent(f"{path} {what}, line {number} cannot be read: {error}; {_AGAIN}") from error


def _compare(path: Path, announced: Census, counted: Census) -> None:
    if difference := counted.difference(announced):
        raise Permanent(f"the count of {path} is wrong: {difference} announced; {_AGAIN}")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with (
        _naming(path, "see that you may read it"),
        gzip.open(path) if path.suffix == _GZIP_SUFFIX else path.open("rb") as file,
    ):
        yield cast("IO[bytes]", file)


@contextmanager
def _packed(part: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != _GZIP_SUFFIX:
        yield part
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=part) as packed:
        yield cast("IO[bytes]", packed)


def _keep(part: IO[bytes], path: Path) -> None:
    """Give the finished file its name, for good: a crash of the machine leaves the whole file or none."""
    part.flush()
    os.fsync(part.fileno())
    _give_name(Path(part.name), path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _give_name(part: Path, path: Path) -> None:
    """Name a file as no other is named: renaming would replace one that has appeared meanwhile."""
    try:
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError:
            # Not every stick knows links: there the name is taken before it is replaced.
            path.touch(exist_ok=False)
            part.rename(path)
        else:
            part.unlink()
    except FileExistsError as error:
        raise _exists(path) from error


def _exists(path: Path) -> Permanent:
    return Permanent(f"{path} exists already: name another file, or remove it first")


@contextmanager
def _naming(path: Path, then: str) -> Iterator[None]:
    """Turn what the file system and the compression say into sentences about this file."""
    try:
        yield
    except EOFError as error:
        raise Permanent(f"{path} ends too early: it was cut off; {_AGAIN}") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise Permanent(f"{path} is damaged: {error}; {_AGAIN}") from error
    except OSError as error:
        raise Permanent(f"{path} cannot be used: {error.strerror or error}; {then}") from error

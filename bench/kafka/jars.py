"""The jars of Apache Kafka: listed with checksums in `jars.lock`, fetched once from Maven Central, kept in a cache."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from time import sleep
from urllib.request import urlopen

from bench.servers import ServerUnavailableError

MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
_LOCK_FILE = Path(__file__).with_name("jars.lock")
_DOWNLOADS = 8
_ANSWER_SECONDS = 60
# How long to wait before each further attempt to fetch a jar.
_PAUSES_SECONDS = (1, 2, 5, 10, 20)


def cache_directory() -> Path:
    """Return the directory of everything that is prepared for this version of Kafka."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    version = hashlib.sha256(_LOCK_FILE.read_bytes() + java_version().encode()).hexdigest()[:16]
    directory = Path(base) / "kingdom" / f"kafka-{version}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def java() -> Path:
    """Return the path of the program java."""
    found = shutil.which("java")
    if found is None:
        raise ServerUnavailableError("java is not installed: run `apt-get install openjdk-17-jre-headless`")
    return Path(found)


def java_version() -> str:
    """Return what java prints about its version."""
    return subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr


def class_path() -> list[Path]:
    """Return the jars of Kafka, after fetching those that are missing.

    KINGDOM_MAVEN_URL names a mirror of Maven Central.
    """
    directory = cache_directory()
    lines = _LOCK_FILE.read_text(encoding="utf-8").splitlines()
    # Each line is a checksum and a path, as sha256sum writes it.
    wanted = {path: checksum for checksum, path in map(str.split, lines)}
    jars = [directory / "jars" / Path(path).name for path in wanted]
    if all(jar.exists() for jar in jars):
        return jars
    with only_one_process(directory), ThreadPoolExecutor(_DOWNLOADS) as pool:
        missing = [path for path, jar in zip(wanted, jars, strict=True) if not jar.exists()]
        list(pool.map(lambda path: _fetch(path, wanted[path], directory / "jars"), missing))
    return jars


@contextmanager
def only_one_process(directory: Path) -> Iterator[None]:
    """Let one process at a time change a directory of the cache."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(path: str, checksum: str, directory: Path) -> None:
    url = f"{os.environ.get('KINGDOM_MAVEN_URL') or MAVEN_CENTRAL}/{path}"
    content = _download(url)
    found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        raise ServerUnavailableError(f"{url} has the checksum {found}, but jars.lock expects {checksum}")
    directory.mkdir(exist_ok=True)
    partial = directory / f"{Path(path).name}.partial"
    partial.write_bytes(content)
    partial.rename(directory / Path(path).name)


def _download(url: str) -> bytes:
    for pause in _PAUSES_SECONDS:
        with suppress(OSError, HTTPException):
            return _read(url)
        sleep(pause)
    try:
        return _read(url)
    except (OSError, HTTPException) as error:
        raise ServerUnavailableError(f"{url} cannot be fetched ({error}): set KINGDOM_MAVEN_URL to a mirror") from error


def _read(url: str) -> bytes:
    with urlopen(url, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - the checksum decides what is accepted
        return bytes(answer.read())

"""Power losses: a disk that records every change, and the possible states after a loss.

A change of a file's content is durable when the file is synced, a change of a name when its directory is synced, and
everything when the filesystem is synced. Each change that is not synced may survive or not, independently of others.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.crashing_disk import InterceptedDisk

_DIRECTORY = -1
_EARLIER = -1
# Not recorded: the lock page, which is shared memory, wake-up files, which are only hints, and temporary files.
_LOCK = "realm/bus/lock"
_WITHOUT_MEANING = ("realm/bus/wake/", "realm/bus/tmp/")


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    changed_at: float | None = None


class State:
    """Names and the files behind them, relative to one directory."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.files: dict[int, _File] = {}

    @classmethod
    def of(cls, place: Path) -> "State":
        state = cls()
        for number, path in enumerate(sorted(place.rglob("*"))):
            if path.is_dir():
                state.names[str(path.relative_to(place))] = _DIRECTORY
            else:
                state.names[str(path.relative_to(place))] = number
                state.files[number] = _File(bytearray(path.read_bytes()), path.stat().st_mtime)
        return state

    def copy(self) -> "State":
        other = State()
        other.names = dict(self.names)
        other.files = {number: _File(bytearray(file.data), file.changed_at) for number, file in self.files.items()}
        return other

    def file(self, number: int) -> _File:
        # A file with a synced name and unsynced content is empty.
        return self.files.setdefault(number, _File())

    def reachable(self) -> Iterator[tuple[str, int]]:
        """Yield everything below the top, directories first."""
        found = {""}
        for path, number in sorted(self.names.items()):
            if _parent(path) in found:
                if number == _DIRECTORY:
                    found.add(path)
                yield path, number

    def digest(self) -> bytes:
        """Return a key that is equal for states that a store cannot distinguish."""
        digest = hashlib.sha256()
        for path, number in self.reachable():
            if not path.startswith(_WITHOUT_MEANING):
                file = _File() if number == _DIRECTORY else self.file(number)
                digest.update(f"{path}\0{number == _DIRECTORY}\0{file.changed_at}\0{len(file.data)}\0".encode())
                digest.update(file.data)
        return digest.digest()

    def build(self, place: Path) -> Path:
        """Write this state into a directory."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for path, number in self.reachable():
            target = place / path
            if number == _DIRECTORY:
                target.mkdir()
                continue
            file = self.file(number)
            target.write_bytes(file.data)
            if file.changed_at is not None:
                os.utime(target, (file.changed_at, file.changed_at))
        return place


@dataclass(slots=True, kw_only=True)
class Effect:
    """One change. The operation `at` made it, and it is durable from the operation `lasts_from` on."""

    at: int
    apply: Callable[[State], None]
    directory: str | None = None
    file: int | None = None
    lasts_from: int | None = None


class RecordingDisk(InterceptedDisk):
    """Records every operation on the files below one directory, and its changes."""

    def __init__(self, place: Path) -> None:
        self._place = f"{place}/"
        self._live = State.of(place)
        self._live.names.pop(_LOCK, None)
        self._descriptors: dict[int, int] = {}
        self._next = max(self._live.files, default=0) + 1
        self.first = self._live.copy()
        self.operations: list[str] = []
        self.effects: list[Effect] = []

    def begin(self) -> None:
        """Start counting here. Everything so far counts as durable."""
        self.first = self._live.copy()
        self.operations.clear()
        self.effects.clear()

    def mark_unsynced(self, path: Path, size: int) -> None:
        """Treat the content of a file beyond a size as earlier content that was never synced."""
        number = self._number(str(path))
        assert number is not None
        tail = bytes(self._live.file(number).data[size:])
        del self.first.file(number).data[size:]
        del self._live.file(number).data[size:]
        self._write_at(_EARLIER, number, size, tail)

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        answer = act()
        at = len(self.operations)
        self.operations.append(name)
        getattr(self, f"_{name}")(at, *arguments, *([answer] if name == "open_for_appending" else []))
        return answer

    def state(self, kept: Callable[[Effect], bool]) -> State:
        """Return the content of the disk when only some of the effects were durable."""
        state = self.first.copy()
        for effect in self.effects:
            if kept(effect):
                effect.apply(state)
        return state

    def losses(self, count: int) -> Iterator[Callable[[Effect], bool]]:
        """Yield the possible contents after a loss of power after this many operations.

        The durable effects survive in each of them. Of the others, none, all, only one, or all but one survive.
        """
        done = [effect for effect in self.effects if effect.at < count]
        lasting = {id(e) for e in done if e.lasts_from is not None and e.lasts_from <= count}
        uncertain = {id(e) for e in done} - lasting
        choices = [set(), uncertain, *({each} for each in uncertain), *(uncertain - {each} for each in uncertain)]
        for chosen in choices:
            kept = lasting | chosen
            yield lambda effect, kept=kept: id(effect) in kept  # type: ignore[misc]

    def _create(self, at: int, path: str, data: bytes) -> None:
        if (number := self._number(path)) is None:
            number = self._make(at, path)
        else:
            self._change(at, number, lambda state: state.file(number).data.clear())
        self._write_at(at, number, 0, data)

    def _append(self, at: int, path: str, data: bytes) -> None:
        number = self._number(path)
        number = self._make(at, path) if number is None else number
        self._write_at(at, number, len(self._live.file(number).data), data)

    def _write(self, at: int, descriptor: int, data: bytes) -> None:
        number = self._descriptors[descriptor]
        self._write_at(at, number, len(self._live.file(number).data), data)

    def _open_for_appending(self, at: int, path: str, descriptor: int) -> None:
        number = self._number(path)
        self._descriptors[descriptor] = self._make(at, path) if number is None else number

    def _overwrite(self, at: int, path: str, changes: Mapping[int, bytes]) -> None:
        number = self._number(path)
        assert number is not None
        for offset, data in changes.items():
            self._write_at(at, number, offset, data)

    def _truncate(self, at: int, path: str, size: int) -> None:
        number = self._number(path)
        assert number is not None

        def cut(state: State) -> None:
            del state.file(number).data[size:]

        self._change(at, number, cut)

    def _stamp(self, at: int, path: str, seconds: float, content: bytes) -> None:
        self._create(at, path, content)
        number = self._number(path)
        assert number is not None

        def stamp(state: State) -> None:
            state.file(number).changed_at = seconds

        self._change(at, number, stamp)

    def _rename(self, at: int, old: str, new: str) -> None:
        source, target = self._short(old), self._short(new)
        number = self._live.names[source]

        def move(state: State) -> None:
            # A rename takes effect in both directories or in none.
            if _parent(target) not in state.names:
                return
            if state.names.get(source) == number:
                del state.names[source]
            state.names[target] = number

        self._rename_in(at, target, move)

    def _unlink(self, at: int, path: str) -> None:
        short = self._short(path)
        if (number := self._live.names.get(short)) is None:
            return

        def remove(state: State) -> None:
            if state.names.get(short) == number:
                del state.names[short]

        self._rename_in(at, short, remove)

    def _make_directory(self, at: int, path: str) -> None:
        if self._short(path) not in self._live.names:
            self._make(at, path, _DIRECTORY)

    def _sync_file(self, at: int, descriptor: int) -> None:
        self._last(at, lambda effect: effect.file == self._descriptors[descriptor])

    def _sync_directory(self, at: int, path: str) -> None:
        self._last(at, lambda effect: effect.directory == self._short(path))

    def _sync_everything(self, at: int, _: str) -> None:
        self._last(at, lambda _: True)

    def _last(self, at: int, chosen: Callable[[Effect], bool]) -> None:
        for effect in self.effects:
            if effect.lasts_from is None and chosen(effect):
                effect.lasts_from = at + 1

    def _make(self, at: int, path: str, number: int | None = None) -> int:
        short = self._short(path)
        made = self._next if number is None else number
        self._next += 1

        # If the removal of the old name is lost, the name still exists and cannot be created again.
        def make(state: State) -> None:
            state.names.setdefault(short, made)

        self._rename_in(at, short, make)
        return made

    def _write_at(self, at: int, number: int, offset: int, data: bytes) -> None:
        def write(state: State) -> None:
            content = state.file(number).data
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data

        self._change(at, number, write)

    def _change(self, at: int, number: int, apply: Callable[[State], None]) -> None:
        self._note(Effect(at=at, apply=apply, file=number))

    def _rename_in(self, at: int, path: str, apply: Callable[[State], None]) -> None:
        self._note(Effect(at=at, apply=apply, directory=_parent(path)))

    def _note(self, effect: Effect) -> None:
        effect.apply(self._live)
        self.effects.append(effect)

    def _number(self, path: str) -> int | None:
        return self._live.names.get(self._short(path))

    def _short(self, path: str) -> str:
        return path.removeprefix(self._place)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]

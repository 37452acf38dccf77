"""The bare loop: it records the disk operations of the store once, and repeats them without any bookkeeping."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.files.load import GROUP, STREAM, TOPOLOGY, drain, settle, some_events
from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.system.disk import Disk, read_file
from kingdom.bus import Envelope

Operation = tuple[str, tuple[Any, ...]]
Action = Callable[[], object]
# All operations of Disk, also future ones.
_OPERATIONS = [name for name, value in vars(Disk).items() if callable(value) and not name.startswith("_")]


class RecordingDisk(Disk):
    """Executes and records every operation."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def taken(self) -> list[Operation]:
        """Return the operations since the last call."""
        operations, self.operations = self.operations, []
        return operations


def _recorded(name: str) -> Callable[..., Any]:
    original = getattr(Disk, name)

    def operation(self: RecordingDisk, *arguments: Any) -> Any:
        self.operations.append((name, arguments))
        return original(self, *arguments)

    return operation


for _name in _OPERATIONS:
    setattr(RecordingDisk, _name, _recorded(_name))


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the port and its disk operations."""

    name: str
    events: int
    operations: Sequence[Operation]

    def counts(self) -> dict[str, int]:
        """Return the number of each operation, and the written bytes."""
        written = sum(len(each) for _, arguments in self.operations for each in arguments if isinstance(each, bytes))
        return {**Counter(name for name, _ in self.operations), "bytes": written}


@dataclass(frozen=True, slots=True)
class Script:
    """A recorded round: the creation of a store, and then every step."""

    root: Path
    opening: Sequence[Operation]
    steps: Sequence[Step]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the disk operations of a step of each name."""
        return {step.name: step.counts() for step in reversed(self.steps)}


async def record(root: Path, sizes: Sequence[int]) -> Script:
    """Publish groups of these sizes and drain them on a working bus, and return the disk operations."""
    disk, steps = RecordingDisk(), []
    async with FilesBus(root, TOPOLOGY, disk=disk) as bus:
        await bus.publish(*some_events(1))
        await drain(bus)
        opening = disk.taken()
        for size in sizes:
            await bus.publish(*some_events(size))
            steps.append(Step(f"publish {size}", size, disk.taken()))
        while deliveries := await bus.claim(STREAM, GROUP, "bench"):
            steps.append(Step("claim", len(deliveries), disk.taken()))
            await settle(bus, deliveries)
            steps.append(Step("settle", len(deliveries), disk.taken()))
    return Script(root, opening, steps)


class Bare:
    """Repeats a script below another root. It also encodes each written message and decodes each read message.

    With `envelopes` the messages are envelopes, as in the bus, otherwise plain JSON objects.
    """

    def __init__(self, root: Path, script: Script, *, envelopes: bool) -> None:
        self._disk = Disk()
        self._old, self._new = str(script.root), str(root)
        self._journal = -1
        self._in_hand: list[object] = []
        self._read = _read_envelope if envelopes else _read_json
        (event,) = some_events(1)
        wire = event.to_wire()
        self._to_json: Callable[[], bytes] = (
            (lambda: msgspec.json.encode(event.to_wire())) if envelopes else (lambda: msgspec.json.encode(wire))
        )
        for act in self._actions(script.opening):
            act()

    def prepare(self, step: Step) -> Action:
        """Return a prepared step, so that only its execution is measured."""
        # A claim moves files and encodes nothing. A settlement encodes each event again, for the archive.
        messages = range(step.events if step.name != "claim" else 0)
        actions, to_json = self._actions(step.operations), self._to_json

        def run() -> None:
            for _ in messages:
                to_json()
            # Claimed messages stay in memory until they are settled.
            self._in_hand = [act() for act in actions]

        return run

    def close(self) -> None:
        """Close the file."""
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1

    def _actions(self, operations: Sequence[Operation]) -> list[Action]:
        actions: list[Action] = []
        for name, recorded in operations:
            arguments = [self._here(argument) for argument in recorded]
            if name == "rename" and "/pending/" in arguments[0]:
                actions.append(partial(self._read, arguments[0]))
            # The journal is the only open file. It had another descriptor in the recording.
            if name == "open_for_appending":
                actions.append(partial(self._open_journal, arguments[0]))
            elif isinstance(arguments[0], int):
                actions.append(partial(self._to_journal, getattr(self._disk, name), *arguments[1:]))
            else:
                actions.append(partial(getattr(self._disk, name), *arguments))
        return actions

    def _here(self, argument: Any) -> Any:
        return argument.replace(self._old, self._new, 1) if isinstance(argument, str) else argument

    def _open_journal(self, path: str) -> None:
        self.close()
        self._journal = self._disk.open_for_appending(path)

    def _to_journal(self, operation: Callable[..., object], *arguments: Any) -> None:
        operation(self._journal, *arguments)


def _read_json(path: str) -> object:
    return msgspec.json.decode(read_file(path))


def _read_envelope(path: str) -> object:
    return Envelope.from_wire(msgspec.json.decode(read_file(path)))

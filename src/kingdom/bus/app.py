"""An application: everything that a worker process must know, declared in the user's own module."""

from collections.abc import Sequence
from dataclasses import dataclass

from kingdom.bus.dispatcher import Dispatcher
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology


@dataclass(frozen=True, slots=True)
class Application:
    """Streams, handlers and kinds of record that belong together; `kingdom bus work MODULE:OBJECT` runs it."""

    topology: Topology
    dispatcher: Dispatcher
    kinds: Sequence[RecordKind] = ()

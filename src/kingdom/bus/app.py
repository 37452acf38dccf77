"""An application: everything that a worker process needs, declared in the user's own module."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kingdom.bus.operations import Retention
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology
from kingdom.bus.worker.dispatcher import Dispatcher


@dataclass(frozen=True, slots=True)
class Application:
    """Streams, handlers, record kinds and retention. `kingdom bus work MODULE:OBJECT` runs an application."""

    topology: Topology
    dispatcher: Dispatcher
    kinds: Sequence[RecordKind] = ()
    retention: Retention = field(default_factory=Retention)

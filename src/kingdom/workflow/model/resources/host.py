"""Soldier hosts, and the choice of a host for a run."""

import hashlib
import math
from collections.abc import Iterable
from enum import Enum, StrEnum

import msgspec

from kingdom.workflow.model.messages.events import HostLost, HostRegistered

_HASH_RANGE = 2**64


class HostStatus(StrEnum):
    """The status of a host: UP while it renews its lease, otherwise LOST."""

    UP = "UP"
    LOST = "LOST"


class HostRenewal(Enum):
    """The result of a lease renewal. Only RENEWED counts as true."""

    RENEWED = "RENEWED"
    # The host was marked as lost. It can register again with a new epoch.
    LOST = "LOST"
    # Another host has registered under the same name.
    REPLACED = "REPLACED"

    def __bool__(self) -> bool:
        """Return whether the host may continue."""
        return self is HostRenewal.RENEWED


class Host(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A process that runs up to `slots` agents at once. `busy` is the number of running agents at its last renewal.

    The epoch grows when the host registers again, after a restart or a lost lease. A host is lost if it does not renew
    its lease for `lease_seconds`. `instance` distinguishes hosts with the same name.
    """

    id: str
    epoch: int
    slots: int
    busy: int = 0
    lease_seconds: float = 30.0
    instance: str = ""
    # The machine and the directory of the transcripts and checkouts. People on that machine can look at them.
    machine: str = ""
    directory: str = ""
    status: HostStatus = HostStatus.UP
    # A drained host keeps its runs and gets no new ones, also after a restart.
    drained: bool = False

    @property
    def takes_runs(self) -> bool:
        """Return whether new runs can be placed on this host."""
        return self.status is HostStatus.UP and not self.drained

    def registered_event(self) -> HostRegistered:
        """Return the event of the registration of this host."""
        return HostRegistered(host=self.id, epoch=self.epoch, slots=self.slots)

    def as_lost(self) -> tuple["Host", HostLost]:
        """Return the host in the state LOST, and the event."""
        return msgspec.structs.replace(self, status=HostStatus.LOST), HostLost(host=self.id, epoch=self.epoch)


def choose_host(hosts: Iterable[Host], workflow_id: str) -> Host | None:
    """Return the host for a new run. Hosts with more free slots get more runs. The same input gives the same host.

    The choice uses a hash of run and host, so many runs that start at once spread over all hosts without coordination.
    """
    able = sorted((host for host in hosts if host.takes_runs), key=lambda host: host.id)
    free = [host for host in able if host.busy < host.slots]
    return max(free or able, key=lambda host: _weight(host, workflow_id), default=None)


def _weight(host: Host, workflow_id: str) -> float:
    """Return the score of a host in weighted rendezvous hashing."""
    digest = hashlib.sha256(f"{host.id}\n{workflow_id}".encode()).digest()
    share = (int.from_bytes(digest[:8]) + 1) / (_HASH_RANGE + 1)
    return -max(host.slots - host.busy, 1) / math.log(share)

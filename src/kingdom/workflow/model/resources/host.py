"""The soldier hosts: which are up, and which of them gets a run."""

import hashlib
import math
from collections.abc import Iterable
from enum import Enum, StrEnum

import msgspec

from kingdom.workflow.model.messages.events import HostLost, HostRegistered

_HASH_RANGE = 2**64


class HostStatus(StrEnum):
    """Whether a host renews its lease."""

    UP = "UP"
    LOST = "LOST"


class HostRenewal(Enum):
    """What became of the lease of a host; only a renewed one counts as true."""

    RENEWED = "RENEWED"
    # It may begin anew under another epoch.
    LOST = "LOST"
    # Another host has its name now.
    REPLACED = "REPLACED"

    def __bool__(self) -> bool:
        """Tell whether the host may go on."""
        return self is HostRenewal.RENEWED


class Host(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A machine that runs agents: `slots` of them at once, `busy` when it was last heard of.

    The epoch grows whenever it begins anew, after a restart or a lost lease. It is lost when it gives no sign of life
    for `lease_seconds`; `instance` tells it apart from another host that was given the same name.
    """

    id: str
    epoch: int
    slots: int
    busy: int = 0
    lease_seconds: float = 30.0
    instance: str = ""
    # Where transcripts and checkouts lie, for whoever sits at the same machine.
    machine: str = ""
    directory: str = ""
    status: HostStatus = HostStatus.UP

    def registered(self) -> HostRegistered:
        """Return what is said once it takes commands."""
        return HostRegistered(host=self.id, epoch=self.epoch, slots=self.slots)

    def lose(self) -> tuple["Host", HostLost]:
        """Return the host as lost."""
        return msgspec.structs.replace(self, status=HostStatus.LOST), HostLost(host=self.id, epoch=self.epoch)


def choose_host(hosts: Iterable[Host], workflow_id: str) -> Host | None:
    """Return the host for a run, free slots counting as weight; the same question has the same answer.

    Weighted by a hash of run and host, a burst of runs spreads over all hosts although nobody counts along.
    """
    up = sorted((host for host in hosts if host.status is HostStatus.UP), key=lambda host: host.id)
    free = [host for host in up if host.busy < host.slots]
    return max(free or up, key=lambda host: _weight(host, workflow_id), default=None)


def _weight(host: Host, workflow_id: str) -> float:
    digest = hashlib.sha256(f"{host.id}\n{workflow_id}".encode()).digest()
    share = (int.from_bytes(digest[:8]) + 1) / (_HASH_RANGE + 1)
    return -max(host.slots - host.busy, 1) / math.log(share)

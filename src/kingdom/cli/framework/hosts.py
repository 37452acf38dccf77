"""Finds hosts in the store, and the folders of a host on this machine."""

import socket
from pathlib import Path

from kingdom.bus.port import Bus
from kingdom.bus.record import read_document
from kingdom.errors import NotFound
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import HOSTS


async def find_host(bus: Bus, name: str) -> Host:
    """Return a host by its name."""
    async with bus.transaction() as transaction:
        record = await transaction.get(HOSTS.name, name)
    if record is None:
        raise NotFound(f"there is no host {name!r}: `kingdom host list` shows all")
    return read_document(record.doc, Host)


async def host_of(bus: Bus, workflow: Workflow) -> Host | None:
    """Return the host of a run, or None if the run has no host or the host is no longer in the store."""
    try:
        return await find_host(bus, workflow.placement.host) if workflow.placement else None
    except NotFound:
        return None


async def folders_here(bus: Bus, workflow: Workflow, what: str) -> HostFolders:
    """Return the folders of a run's host, if it is this machine.

    Otherwise raise NotFound. Its message says where `what`, such as the checkout, is.
    """
    if workflow.placement is None:
        raise NotFound(f"workflow {workflow.id} was never placed on a host, so there is no {what}: start it first")
    host = await find_host(bus, workflow.placement.host)
    if host.machine != socket.gethostname():
        raise NotFound(
            f"the {what} of workflow {workflow.id} is on host {host.id}, machine {host.machine or 'unknown'}, in"
            f" {host.directory}: run this command there"
        )
    return HostFolders(Path(host.directory))

"""Find the machines that run agents."""

from kingdom.bus.port import Bus
from kingdom.bus.record import read_document
from kingdom.errors import NotFound
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

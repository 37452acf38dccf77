"""The folders of a host on this machine."""

import socket
from pathlib import Path

from kingdom.actions.hosts import find_host
from kingdom.bus.port import Bus
from kingdom.errors import NotFound
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.run.workflow import Workflow


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

"""A soldier host as its own process, to be stopped, killed or ended by its test."""

import asyncio
import itertools
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.bootstrap import open_bus, run_texts_of
from kingdom.bus import Bus, Transaction
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.host import host as hosting
from kingdom.soldiers.host.host import ENVIRONMENT, SoldierHost
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.checkout_setup import CheckoutSetup
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.reactions import engine
from tests.fakes.agent_environment import UNCONFINED
from tests.integration.processes import say
from tests.integration.soldiers.file_accesses import note_accesses
from tests.integration.soldiers.host_barriers import BarredBus, publishes
from tests.integration.soldiers.processes import MARK

# Renew often although the lease is long, so that a host that was suspended soon checks its registration.
_RENEWED_EVERY_SECONDS = 0.5


async def run(options: dict[str, Any]) -> None:
    hosting._RENEWALS_PER_LEASE = options["lease_seconds"] / _RENEWED_EVERY_SECONDS
    if "notes" in options:
        note_accesses(Path(options["directory"]), Path(options["notes"]))
    application = engine()
    url = f"file:{options['place']}" if options["backend"] == "files" else options["place"]
    async with open_bus(url, application.topology, application.kinds) as bus:
        host = SoldierHost(
            _freezing_at(bus, *options["freezes_at"]) if "freezes_at" in options else bus,
            options["name"],
            ScriptedAgentClient(),
            HostFolders(Path(options["directory"])),
            slots=options["slots"],
            lease=timedelta(seconds=options["lease_seconds"]),
            environment={**ENVIRONMENT, MARK: options["mark"]},
            agent_environment=_confined_with(Path(options["files"])) if "files" in options else UNCONFINED,
            texts=run_texts_of(bus),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, host.stop)
        say("ready")
        await host.run()


def _confined_with(files: Path) -> AgentEnvironment:
    """Return an agent environment with a sandbox and a readable folder, from which checkouts may include files."""
    return AgentEnvironment(
        profile=SandboxProfile.STRICT, path=(files,), checkout_setup=CheckoutSetup(files=files), disk_mib=1000
    )


def _freezing_at(bus: Bus, event_type: str, number: int) -> Bus:
    """Return a bus that suspends this process before it commits the n-th event of a type."""
    seen = itertools.count(1)

    async def freeze(transaction: Transaction) -> None:
        if publishes(transaction, event_type) and next(seen) == number:
            say("frozen")
            os.kill(os.getpid(), signal.SIGSTOP)

    return BarredBus(bus, freeze)


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[-1])))

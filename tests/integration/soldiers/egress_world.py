"""A small internet in its own network namespace, in which an agent downloads packages with real tools.

`python -m tests.integration.soldiers.egress_world FOLDER COMMAND PATH…` serves registries on public addresses, runs the
command as an agent in a strict sandbox, prints the result as JSON, and ends.
"""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kingdom.soldiers.agent_kinds import AGENT_KINDS, build_agent_environment
from kingdom.soldiers.agents.port import AgentFailed, Launch, Prompt, TurnAnswer
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from kingdom.soldiers.host.host import ENVIRONMENT
from kingdom.soldiers.sandbox.egress_ledger import read_attempts
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.workplace.agent_environment import Workplace
from kingdom.soldiers.workplace.host_folders import HostFolders
from tests.contract.agents.stage import AT_ONCE, updates_of
from tests.integration.soldiers.registries import write_registries
from tests.integration.soldiers.web import make_certificate, server_context

NAMED, BELOW, OTHER, INNER = "registry.example.org", "mirror.example.org", "evil.example.net", "inner.example.org"
# The first three are public addresses and the last is private. All are on the loopback device of this namespace.
ADDRESSES = {NAMED: "93.184.216.10", BELOW: "93.184.216.11", OTHER: "93.184.216.12", INNER: "10.1.2.3"}


def configure_network(folder: Path) -> None:
    """Give this namespace its addresses and names."""
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in ADDRESSES.items()))
    _run("ip", "link", "set", "lo", "up")
    for address in ADDRESSES.values():
        _run("ip", "address", "add", f"{address}/32", "dev", "lo")
    _run("mount", "--bind", str(hosts), "/etc/hosts")


def serve(folder: Path) -> Callable[[], None]:
    """Serve registries on all addresses. Return a function that stops them."""
    certificate = make_certificate(folder / "tls", *ADDRESSES)
    (folder / "www").mkdir()
    write_registries(folder / "www", f"https://{NAMED}")

    server = ThreadingHTTPServer(("", 443), partial(_Handler, directory=str(folder / "www")))
    server.daemon_threads = True
    server.socket = server_context(certificate).wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.shutdown


async def run_agent(folder: Path, command: str, path: list[str]) -> str:
    """Return the answer of an agent that runs one shell command."""
    settings = SoldierSettings(
        agent="command", command=("/bin/sh", "-e", "-s"), path=(*path,), egress=(NAMED, "*.example.org")
    )
    folders = HostFolders(folder / "host")
    folders.create()
    space = folders.work_space("general", "space")
    space.mkdir(parents=True)
    (space / "cert.pem").write_bytes((folder / "tls" / "cert.pem").read_bytes())
    workplace = Workplace(
        agent_environment=build_agent_environment(settings, lambda _: None, set()),
        folders=folders,
        run_checkouts=RunCheckouts(folders.repositories),
        workflow_id="wf-1",
        home_run="wf-1",
        space=space,
        checkouts=(),
        base_variables=ENVIRONMENT,
    )
    trust = ("CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO")
    async with AsyncExitStack() as stack:
        launch = Launch(
            soldier_id="s1",
            work_space=space,
            model="some",
            session=None,
            transcript=folders.transcript("s1"),
            errors=folders.errors("s1"),
            environment={**workplace.program_environment(), **dict.fromkeys(trust, str(space / "cert.pem"))},
            mcp_servers=(),
            sandbox=workplace.sandbox(None, await workplace.open_egress(stack)),
        )
        started = await AGENT_KINDS["command"].client(settings).start(launch)
        stack.push_async_callback(started.stop, AT_ONCE)
        try:
            end = (await updates_of(started, Prompt(id="t1#1", text=command)))[-1]
        except AgentFailed as error:
            return f"failed: {error}"
    return end.text if isinstance(end, TurnAnswer) else str(end)


def main() -> None:
    """Set up the network, run the agent and print the result."""
    folder, command, path = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    configure_network(folder)
    stop = serve(folder)
    output = asyncio.run(run_agent(folder, command, path))
    log = HostFolders(folder / "host").egress_log("wf-1")
    attempts = [[each.outcome, each.host, each.reason] for each in read_attempts(log)]
    sys.stdout.write(json.dumps({"printed": output, "attempts": attempts}))
    stop()


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


if __name__ == "__main__":
    main()

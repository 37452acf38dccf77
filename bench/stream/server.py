"""`python -m bench.stream.server VARIANT WORD…`: run `kingdom`. VARIANT names the defect of its stream, if any."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.servers import LOOPBACK, PATIENCE_SECONDS
from bench.stream.variants import AS_IT_IS, SERVER_VARIANTS
from kingdom.cli.main import main

_TOKEN = ("web", "token", "create", "bench", "--may", "look")
_POLL_SECONDS = 0.05


class WebProcess:
    """`kingdom web` on a store, which clients reach through a proxy. Its realm and its output are in `folder`."""

    def __init__(self, folder: Path, store: str, variant: str, *, port: int, proxy_port: int) -> None:
        self._log = folder / "web.log"
        self._variant = variant
        self._port = port
        # Modules of the bench are found from the directory of this process.
        path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "KINGDOM_DATABASE_URL": store, "PYTHONPATH": path}
        self._surroundings: dict[str, Any] = {"cwd": folder, "env": environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://{LOOPBACK}:{proxy_port}"
        self.kills = 0
        (folder / "kingdom.yaml").write_text(f"web:\n  address: {LOOPBACK}:{port}\n  url: {self.url}\n")

    def create_token(self) -> str:
        """Return a token with the right to look."""
        done = subprocess.run(_command(AS_IT_IS, *_TOKEN), **self._surroundings, check=True, capture_output=True)
        token: str = done.stdout.decode().strip()
        return token

    async def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._process = self._spawn()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(LOOPBACK, self._port)
                writer.close()
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise RuntimeError(f"the server does not start: {self._log.read_text()[-2000:]}")

    async def restart(self) -> None:
        """Kill the server with SIGKILL, and start it again."""
        self.kill()
        self.kills += 1
        await self.start()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(_command(self._variant, "web"), **self._surroundings, stdout=output, stderr=output)


def _command(variant: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "bench.stream.server", variant, *words]


if __name__ == "__main__":
    SERVER_VARIANTS.get(sys.argv[1], lambda: None)()
    sys.argv[1:] = sys.argv[2:]
    main()

"""An event that a person sends is handled even if the processors of the machine are busy."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.terminal import Terminal, eventually

# The test waits until the pressure of the last two minutes is high.
pytestmark = pytest.mark.timing

SETTINGS = """
chamberlain:
  every_seconds: 1
  # The disk must not influence this test.
  health: {disk_yellow: 1000, disk_orange: 1000}
"""


@pytest.fixture(scope="module")
def busy_loops() -> Iterator[None]:
    """Two busy loops on every core."""
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("store", ["files", "postgres"])
@pytest.mark.usefixtures("busy_loops")
def test_with_two_busy_loops_on_every_core_an_event_of_a_fresh_realm_is_completed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("dsn") if store == "postgres" else f"file:{tmp_path / 'home' / 'realm'}"
    terminal = Terminal(tmp_path, url)
    home = tmp_path / "home"
    assert terminal.run("init", str(home), "--yes").code == 0
    config = ("--config", str(home / "kingdom.yaml"))
    with (home / "kingdom.yaml").open("a") as file:
        file.write(SETTINGS)
    with terminal.start("up", *config, "--json-logs") as up:
        up.logs("host registered")

        def busy() -> dict[str, Any] | bool:
            health: dict[str, Any] = terminal.run("status", *config, "--json").document["health"]
            return health["level"] in ("orange", "red") and health

        health = eventually(busy)
        assert health["reason"].startswith("cpu_percent: ")
        assert (health["stops_work"], health["effect"].partition(" (")[0]) == (False, "one run at a time")
        done = terminal.run("send", "--type", "demo.hello", "--wait", *config)
        assert (done.code, "ended: completed" in done.out) == (0, True), done
        up.process.terminate()
        assert up.ends() == 0

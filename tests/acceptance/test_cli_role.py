"""Roles as systemd starts them: each process reads from the store how the previous process of its role ended."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.terminal import Running, Terminal

RESTARTED = "recovery.session_restarted"
LIFE = ("system.startup", "system.shutdown", RESTARTED)


class Machine:
    """Starts roles in the realm of one store, and reads its log."""

    def __init__(self, terminal: Terminal, settings: Path) -> None:
        self.terminal = terminal
        self._settings = str(settings)

    @contextmanager
    def role(self, name: str) -> Iterator[Running]:
        with self.terminal.start("role", name, "--config", self._settings, "--json-logs") as running:
            running.logs("role started")
            yield running

    def stop(self, *roles: Running) -> None:
        for role in roles:
            role.process.terminate()
        for role in roles:
            assert role.ends() == 0

    def kill(self, *roles: Running) -> None:
        for role in roles:
            role.process.kill()
            assert role.ends() == -signal.SIGKILL

    def log(self) -> list[dict[str, Any]]:
        done = self.terminal.run("bus", "tail", "--json")
        assert done.code == 0, done.err
        return done.documents

    def life(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the log entries about starts, stops and restarts."""
        return [(each["type"], each["actor"], each["data"]) for each in self.log() if each["type"] in LIFE]


@pytest.fixture(params=["files", "postgres"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    url = f"file:{tmp_path / 'realm'}" if request.param == "files" else request.getfixturevalue("dsn")
    settings = tmp_path / "kingdom.yaml"
    settings.write_text(yaml.safe_dump({"heartbeat_seconds": 1}))
    return Machine(Terminal(tmp_path, url), settings)


def test_a_court_whose_roles_start_one_by_one_logs_one_start_and_one_stop(machine: Machine) -> None:
    with machine.role("envoy") as envoy, machine.role("king") as king:
        machine.stop(envoy)
        with machine.role("envoy") as again:
            assert [each[0] for each in machine.life()] == ["system.startup"]
            machine.stop(again, king)
    started, stopped = machine.life()
    assert started[:2] == ("system.startup", "system")
    assert stopped == ("system.shutdown", "system", {"reason": "a signal"})
    with machine.role("king") as king:
        machine.stop(king)
    assert [each[0] for each in machine.life()] == ["system.startup", "system.shutdown"] * 2


def test_a_role_whose_process_died_logs_its_restart(machine: Machine) -> None:
    with machine.role("envoy") as envoy, machine.role("king") as king:
        machine.kill(king)
        with machine.role("king") as again:
            restarted = (RESTARTED, "chamberlain", {"target": "king", "pid": again.process.pid})
            assert machine.life()[1:] == [restarted]
            with machine.role("king") as second:
                assert machine.life()[1:] == [restarted]
                machine.stop(second)
            # A failure of the whole machine: the court starts again, and every role had died.
            machine.kill(envoy, again)
    with machine.role("king") as king, machine.role("envoy") as envoy:
        entries = machine.life()[2:]
        assert [data for kind, _, data in entries if kind == RESTARTED] == [
            {"target": "king", "pid": king.process.pid},
            {"target": "envoy", "pid": envoy.process.pid},
        ]
        assert [kind for kind, _, _ in entries].count("system.startup") == 1
        machine.stop(envoy, king)
    assert machine.life()[-1][0] == "system.shutdown"

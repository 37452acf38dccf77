import os
import re
import signal
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from kingdom.court.heartbeat import ROLES, WEB
from kingdom.realm import EXAMPLE
from tests.acceptance.terminal import CTRL_C, Running, Terminal, eventually

METRICS = frozenset({'kingdom_court_money_usd{kind="limit"}', 'kingdom_outbox_pending{stream="court.event"}'})


@pytest.fixture
def files(tmp_path: Path, realm: Path) -> Terminal:
    return Terminal(tmp_path, f"file:{realm}")


@pytest.fixture
def settings(tmp_path: Path) -> str:
    file = tmp_path / "kingdom.yaml"
    healthy = {"yellow": 1000, "orange": 1000, "red": 1000, "disk_yellow": 1000, "disk_orange": 1000}
    document = {"chamberlain": {"every_seconds": 1, "health": healthy}, "heartbeat_seconds": 1}
    file.write_text(yaml.safe_dump(document))
    return str(file)


def roles_started(up: Running, times: int, role: str = "") -> list[dict[str, object]]:
    def look() -> list[dict[str, object]] | bool:
        assert up.process.poll() is None
        found = [line for line in up.lines_about("role started") if role in ("", line["role"])]
        return len(found) >= times and found

    return eventually(look)


def none_left(pids: list[int]) -> str | bool:
    left = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    return not left and "none"


def children(up: Running) -> dict[str, int]:
    found = psutil.Process(up.process.pid).children()
    return {words[words.index("role") + 1]: each.pid for each in found if "role" in (words := each.cmdline())}


def test_all_roles_start_restart_and_end_together(files: Terminal, settings: str, realm: Path) -> None:
    own_heartbeat = realm / "state" / "gen-hello" / "heartbeat"
    assert files.run("general", "install", "gen-hello").code == 0
    with files.start("up", "--config", settings, "--metrics-port", "0", "--json-logs") as up:
        roles_started(up, len((*ROLES, WEB)))
        (served,) = up.logs("metrics served")
        eventually(lambda: METRICS.issubset(httpx.get(served["address"]).text.split()) and METRICS)
        done = files.run("event", "send", "--type", "demo.hello", "--wait")
        assert (done.code, "ended: completed" in done.out) == (0, True), done
        unwanted = files.run("event", "send", "--type", "demo.nothing", "--wait")
        assert (unwanted.code, "ended: unrouted, no General subscribes to it" in unwanted.out) == (0, True), unwanted
        before = children(up)
        assert sorted(before) == sorted((*ROLES, WEB))
        eventually(lambda: own_heartbeat.exists() and "there")
        again = files.run("up", "--config", settings)
        assert (again.code, f"pid {up.process.pid}" in again.err, "already runs" in again.err) == (2, True, True)

        psutil.Process(before["king"]).send_signal(signal.SIGKILL)
        roles_started(up, 2, "king")
        (ended,) = up.lines_about("role ended, restarting it in 1 s")
        assert (ended["role"], ended["about"], ended["end"]) == ("up", "king", "killed by SIGKILL")
        after = children(up)
        assert {role for role in ROLES if before[role] != after[role]} == {"king"}

        def well() -> dict[str, object] | bool:
            standing: dict[str, object] = files.run("status", "--config", settings, "--json").document
            return not standing["troubles"] and standing

        assert {role["role"] for role in eventually(well)["roles"]} == set(ROLES)  # type: ignore[attr-defined]
        assert files.run("status", "--config", settings).code == 0

        up.process.terminate()
        assert up.ends() == 0
        assert none_left(list(after.values()))
    log = files.run("bus", "tail", "--json").documents
    starts = [entry for entry in log if entry["type"].startswith("system.st")]
    assert [(entry["actor"], list(entry["data"])) for entry in starts] == [("system", ["version"])]
    assert [entry["data"] for entry in log if "shutdown" in entry["type"]] == [{"reason": "a signal"}]
    restarts = [entry["data"] for entry in log if entry["type"] == "recovery.session_restarted"]
    assert restarts == [{"target": "king", "pid": after["king"]}]
    (created,) = [entry["data"]["task_id"] for entry in log if entry["type"] == "task.created"]
    lines = (realm / "logs" / "tasks.log").read_text()
    steps = re.findall(rf" (\S+: \[TASK\] \w+): {created}\b", lines)
    assert steps == ["king: [TASK] Created", "general: [TASK] Started", "general: [TASK] Completed"]
    assert re.search(rf"king: \[EVENT\] Dispatched: evt-cli-\S+ task_id={created} target_general=gen-hello", lines)
    assert re.search(r"king: \[EVENT\] Discarded: evt-cli-\S+ event_type=demo\.nothing", lines)


def test_a_sandbox_that_cannot_be_created_ends_kingdom_up_and_a_disabled_one_is_reported_at_each_start(
    files: Terminal, tmp_path: Path
) -> None:
    broken = tmp_path / "bin" / "bwrap"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    file = tmp_path / "kingdom.yaml"
    file.write_text("soldiers: {sandbox: strict}\n")
    up = ("up", "--config", str(file), "--json-logs", "--role", "soldiers")
    refused = files.run(*up, environment={"PATH": f"{broken.parent}{os.pathsep}{os.environ['PATH']}"})
    assert (refused.code, "No permissions to create new namespace" in refused.err) == (2, True), refused.err
    assert "under `soldiers` into kingdom.yaml" in refused.err

    file.write_text("soldiers: {sandbox: 'off'}\n")
    with files.start(*up) as running:
        for times in (1, 2):
            roles_started(running, times, "soldiers")
            warnings = [line for line in running.logged() if "WITHOUT A SANDBOX" in line["event"]]
            assert [line["level"] for line in warnings] == ["warning"] * times
            psutil.Process(children(running)["soldiers"]).send_signal(signal.SIGKILL)
        running.process.terminate()
        assert running.ends() == 0


def test_roles_end_if_kingdom_up_is_killed(files: Terminal, settings: str) -> None:
    with files.start("up", "--config", settings, "--json-logs", "--role", "king", "--role", "soldiers") as up:
        roles_started(up, 2)
        everything = [each.pid for each in psutil.Process(up.process.pid).children(recursive=True)]
        assert len(everything) >= 2
        up.process.kill()
        up.ends()
        assert eventually(lambda: none_left(everything)) == "none"


def test_after_a_second_signal_kingdom_up_does_not_wait_for_a_role_that_hangs(files: Terminal, settings: str) -> None:
    with files.start("up", "--config", settings, "--json-logs", "--role", "envoy", last_wait=0.1) as up:
        roles_started(up, 1)
        (envoy,) = children(up).values()
        psutil.Process(envoy).suspend()
        up.process.terminate()
        up.logs("stopping")
        assert up.process.poll() is None
        up.process.terminate()
        assert up.ends() == 128 + signal.SIGTERM
        assert eventually(lambda: none_left([envoy])) == "none"


def test_a_terminal_shows_the_roles_and_the_status_of_the_court(files: Terminal, settings: str) -> None:
    done = files.converse("up", "--config", settings, "--role", "envoy", until="money today", answer=CTRL_C)
    assert done.code == 0
    for words in ("envoy", "running", "health", "assignments", "king and sentinel do not run"):
        assert words in done.out
    last = done.out[done.out.rindex("last exit") :]
    assert "running" not in last
    assert "All roles have ended." in last


def test_without_kingdom_yaml_an_example_is_printed(files: Terminal) -> None:
    done = files.run("up")
    assert (done.code, done.out) == (2, EXAMPLE)
    assert "There is no kingdom.yaml here. `kingdom init` creates a realm" in done.err


def test_an_unknown_role_or_setting_is_refused_before_anything_starts(
    files: Terminal, settings: str, tmp_path: Path
) -> None:
    stranger = files.run("up", "--config", settings, "--role", "jester")
    assert (stranger.code, "there is no role jester; there are: chamberlain" in " ".join(stranger.err.split())) == (
        2,
        True,
    )
    (tmp_path / "wrong.yaml").write_text("king: {crown: 1}\n")
    wrong = files.run("config", "check", str(tmp_path / "wrong.yaml"))
    assert (wrong.code, "wrong.yaml:1: king.crown: unknown field" in wrong.err) == (2, True)
    assert files.run("config", "check", settings, "--json").document["chamberlain"]["every_seconds"] == 1

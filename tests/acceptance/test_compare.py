import json
import subprocess
import sys

_QUICK = [sys.executable, "-m", "bench.compare", "--events", "1000", "--rounds", "3"]


def test_the_bus_stays_within_sight_of_a_bare_loop() -> None:
    run = subprocess.run([*_QUICK, "--demand", "0.2"], capture_output=True, text=True, check=True)
    figures = json.loads(run.stdout.splitlines()[-1])
    assert set(figures["shares"]) == {"publish one", "publish 100", "drain"}
    assert figures["failed"] == []


def test_the_comparison_fails_where_more_is_demanded_than_the_bare_loop_gives() -> None:
    run = subprocess.run([*_QUICK, "--demand", "100"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert json.loads(run.stdout.splitlines()[-1])["failed"] == ["publish one", "publish 100", "drain"]

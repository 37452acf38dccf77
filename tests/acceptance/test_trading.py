"""The order pipeline under kills and faults places every order once, and the checker catches each broken variant."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.trading.scenarios import SCENARIOS, Scenario
from bench.trading.variants import VARIANTS
from examples.trading.exchange import FAULTS
from tests.benches import bench

ROOT = Path(__file__).parents[2]
ORDERS = 40
# The public packages that an application may use.
PUBLIC = {"kingdom", "kingdom.bus", "kingdom.bus.maintenance", "kingdom.bus.metrics", "kingdom.backends.postgres"}
LOGS = "kingdom.log_output"
SHOWN = [pytest.param(scenario, id=scenario.name) for scenario in SCENARIOS]
DIFFERENT = [pytest.param(scenario, id=scenario.name) for scenario in {each.act: each for each in SCENARIOS}.values()]


def test_every_order_is_placed_once_while_processes_and_postgres_are_killed_and_the_exchange_fails() -> None:
    done = bench("trading", "--orders", str(ORDERS), "--no-variants", "--json", "-", ends_with=0)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"]
    assert figures["findings"] == {}
    assert sum(figures["intents"].values()) == ORDERS
    assert figures["intents"].keys() == {"FILLED", "REJECTED"}
    assert figures["exchange"]["order"] == figures["intents"]["FILLED"]
    assert figures["exchange_faults"].keys() == FAULTS.keys()
    assert figures["unknown_while_suspended"] > figures["unknown_at_end"] == 0
    assert figures["pushes"] == figures["notifications"] > ORDERS
    assert {"worker killed", "exchange killed", "postgres killed"} <= figures["kills"].keys()


def test_every_variant_has_a_scenario() -> None:
    assert {scenario.variant for scenario in SCENARIOS} == VARIANTS.keys()


APPLY_ALL = """
import os, sys
from bench.trading.variants import VARIANTS
for name, variant in VARIANTS.items():
    if os.fork() == 0:
        variant()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.wait()[1]):
        sys.exit(f"{name} cannot be applied")
"""


def test_every_variant_can_be_applied_to_the_code() -> None:
    subprocess.run([sys.executable, "-c", APPLY_ALL], cwd=ROOT, check=True)


@pytest.mark.variants
@pytest.mark.parametrize("scenario", SHOWN)
async def test_the_checker_catches_the_broken_variant(scenario: Scenario, dsn: str) -> None:
    findings = await scenario.run(dsn, broken=True)
    assert scenario.breaks in {finding.rule for finding in findings}


@pytest.mark.variants
@pytest.mark.parametrize("scenario", DIFFERENT)
async def test_the_intact_pipeline_passes_the_scenario_that_a_broken_variant_fails(
    scenario: Scenario, dsn: str
) -> None:
    assert await scenario.run(dsn, broken=False) == []


@pytest.mark.variants
def test_a_broken_pipeline_does_not_pass_the_whole_trial() -> None:
    words = ("--orders", "60", "--variant", "retry_unknown", "--drain", "20", "--json", "-")
    figures = json.loads(bench("trading", *words, ends_with=1).stdout.splitlines()[-1])
    assert figures["findings"]["an intent has two orders"] > 0


def test_the_example_imports_only_public_packages() -> None:
    used = set()
    for path in (ROOT / "examples" / "trading").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module)
    assert {name for name in used if name.startswith("kingdom")} <= PUBLIC | {LOGS}

"""The two tiers of the tests: the gate, which `make check` runs, and the parts of `make proof`."""

import pytest

GATE = "gate"
# Each part of the proof is a mark, with the reason why its tests are not in the gate.
PARTS = {
    "second_store": "domain code uses a store only through the bus, which the contract suite tests on both stores",
    "variants": "deliberately broken variants test the checkers, which seldom change",
    "kafka": "kills brokers, couriers and consumers, and runs the contract of delivery on Kafka",
    "benches": "short forms of benches take minutes and measure best on a machine of their own",
    "pages": "pages of the documentation beyond README start whole courts",
    "installed": "wheels, demos, new realms and shells as a user has them take minutes to install and to run",
    "web": "journeys in a browser need Chromium and take minutes",
    "timing": "compares seconds or waits for real time, which a busy machine stretches",
    "long": "long versions of tests whose short versions are in the gate",
    "mutants_files": "runs, for each mutant, the tests that reach it, and then ten seconds of fault injection",
    "mutants_postgres": "the same on PostgreSQL",
    "sweep_files": "a crash at every step of a run takes up to half an hour",
    "sweep_postgres": "the same sweep on PostgreSQL",
    "sweep_merged_files": "a crash at every step of a court, from a ticket to a merged pull request",
    "sweep_merged_postgres": "the same sweep on PostgreSQL",
    "sweep_claude": "a crash at many steps of runs of Claude Code, on both stores",
    "agents": "Claude Code in whole courts and in the contract of agents, agents of other vendors, the whole red team",
}
BOTH_STORES = "both_stores"
# Tests of code that uses only the bus, so that files are enough for the gate.
_DOMAIN = (
    *(f"tests/integration/{name}/" for name in ("court", "soldiers", "top", "workflow")),
    # These tests start a whole court per store.
    "tests/acceptance/court/",
)
_STORE_PARAMETERS = ("backend", "history", "url")


def register(config: pytest.Config) -> None:
    """Register the marks."""
    marks = {
        GATE: "set on every test that is in no part of the proof",
        BOTH_STORES: "a domain test where stores can differ (races, kills, layout), so that the gate runs it on both",
        **PARTS,
    }
    for name, meaning in marks.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def assign(items: list[pytest.Item]) -> None:
    """Give each test the mark of its tier."""
    for item in items:
        if not PARTS.keys() & {mark.name for mark in item.iter_markers()}:
            item.add_marker("second_store" if _is_on_second_store(item) else GATE)


def _is_on_second_store(item: pytest.Item) -> bool:
    if not item.nodeid.startswith(_DOMAIN) or item.get_closest_marker(BOTH_STORES):
        return False
    callspec = getattr(item, "callspec", None)
    return callspec is not None and any(callspec.params.get(name) == "postgres" for name in _STORE_PARAMETERS)

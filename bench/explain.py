"""The plans of the statements of a bus, as the server executed them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from psycopg.errors import Diagnostic
from psycopg.rows import DictRow

from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres.bus import SESSION_SETTINGS
from kingdom.backends.postgres.connection import Connection, Rows
from kingdom.backends.postgres.lease_renewals import LeaseRenewals

# auto_explain sends the plan of each executed statement to the client, so no statement has to run again for EXPLAIN.
_SETTINGS = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_buffers = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_format = json",
    "SET auto_explain.log_level = notice",
)
_PLACEHOLDER = re.compile(r"%\(\w+\)s|\$\d+")


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement as it was executed. `compiled` says whether the server compiled it just in time."""

    name: str
    tree: Mapping[str, Any]
    compiled: bool
    parameters: Mapping[str, Any]

    @property
    def buffers(self) -> int:
        """Return the shared buffers that the whole statement hit or read, writing CTEs included."""
        # A node includes everything below it, also the CTEs that it reads. A writing CTE that no node reads runs only
        # after the top node has ended, so its buffers are added.
        nodes = list(self.nodes())
        scanned = {node["CTE Name"] for node in nodes if node["Node Type"] == "CTE Scan"}
        late = [
            node
            for node in nodes
            if node["Node Type"] == "ModifyTable"
            and node.get("Subplan Name", "").startswith("CTE ")
            and node["Subplan Name"].removeprefix("CTE ") not in scanned
        ]
        return sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in [self.tree, *late])

    @property
    def indexes(self) -> set[str]:
        """Return the names of the indexes that the plan uses, also for conflicts."""
        scanned = {node["Index Name"] for node in self.nodes() if "Index Name" in node}
        return scanned.union(*(node.get("Conflict Arbiter Indexes", ()) for node in self.nodes()))

    @property
    def read_whole(self) -> set[str]:
        """Return the tables that the plan scans completely."""
        return {node["Relation Name"] for node in self.nodes() if node["Node Type"].endswith("Seq Scan")}

    @property
    def rows_read(self) -> int:
        """Return how many rows the busiest node of the plan read, in all its loops."""
        removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")
        return max(
            int((node["Actual Rows"] + sum(node.get(each, 0) for each in removed)) * node["Actual Loops"])
            for node in self.nodes()
        )

    def nodes(self) -> Iterator[Mapping[str, Any]]:
        """Yield every node of the plan."""
        yield from _walk(self.tree)


class ExplainedBus(PostgresBus):
    """A PostgresBus that keeps the plan of every statement it executes."""

    plans: list[Plan]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.plans = []
        self._renewals = _ExplainedRenewals(self.dsn, self.queries, SESSION_SETTINGS, through_pgbouncer=False)
        self._renewals.note = self._note
        self._running: tuple[str, Mapping[str, Any]] = ("", {})

    def take(self, *names: str) -> list[Plan]:
        """Return the plans since the last call. If names are given, return only the plans of these queries."""
        taken, self.plans = self.plans, []
        return [plan for plan in taken if not names or plan.name in names]

    async def _execute(self, name: str, parameters: Mapping[str, Any], *, raise_tokens: bool = False) -> Rows:
        self._running = name, parameters
        return await super()._execute(name, parameters, raise_tokens=raise_tokens)

    async def _configure(self, connection: Connection) -> None:
        await super()._configure(connection)
        for setting in _SETTINGS:
            await connection.execute(setting)
        connection.add_notice_handler(self._note)

    def _note(self, notice: Diagnostic) -> None:
        words, _, document = (notice.message_primary or "").partition("plan:\n")
        if words.startswith("duration:") and document:
            plan = json.loads(document)
            shape = _shape(plan["Query Text"])
            name = next((name for name, text in self.queries.items() if _shape(text) == shape), "")
            parameters = self._running[1] if self._running[0] == name else {}
            self.plans.append(Plan(name, plan["Plan"], "JIT" in plan, parameters))


class _ExplainedRenewals(LeaseRenewals):
    note: Callable[[Diagnostic], None]

    def _configure(self, connection: psycopg.Connection[DictRow]) -> None:
        super()._configure(connection)
        for setting in _SETTINGS:
            connection.execute(setting)
        connection.add_notice_handler(self.note)


@cache
def _shape(text: str) -> str:
    """Return a statement without parameter names, because the server sees $1 instead of %(name)s."""
    return " ".join(_PLACEHOLDER.sub("?", text).replace("%%", "%").split())


def _walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)

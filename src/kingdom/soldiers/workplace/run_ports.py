"""The ports of runs: every run of a host has ten of its own, and loses them only when no others are free."""

from pathlib import Path

from kingdom.atomic_write import write_atomically

PORTS_PER_RUN = 10
PORT_VARIABLE = "KINGDOM_PORT_BASE"
# These ports are below the range from which the kernel assigns ports.
_PORT_FIRST, _PORT_END = 12_000, 32_760
_PORT_FILE = "ports"
# How many runs lose their ports at once when none are free, because it takes long to find out which.
_TAKEN_AWAY = 100


class RunPorts:
    """Assigns ports to the runs of a host. Only the process of the host does this, and only in one thread."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        # The bases that no run has, the next one last. All folders are read only when none is left.
        self._free: list[int] = []

    def base(self, workflow_id: str) -> int:
        """Return the first of a run's ten ports.

        A run keeps its ports. If no ports are free, new runs get those that were not used for the longest time.
        """
        file = self._runs / workflow_id / _PORT_FILE
        if (own := _read_base(file)) is not None:
            file.touch()
            return own
        if not self._free:
            self._free = self._find_free()
        base = self._free.pop()
        write_atomically(file, f"{base}\n")
        return base

    def _find_free(self) -> list[int]:
        found = ((_read_base(file), file) for file in self._runs.glob(f"*/{_PORT_FILE}"))
        taken = {base: file for base, file in found if base is not None}
        free = [base for base in range(_PORT_FIRST, _PORT_END, PORTS_PER_RUN) if base not in taken]
        if free:
            return free[::-1]
        # There are far more port blocks than agents, so the least recently used blocks belong to ended runs.
        oldest = sorted(taken, key=lambda base: _last_used_at(taken[base]))[:_TAKEN_AWAY]
        for base in oldest:
            taken[base].unlink(missing_ok=True)
        return oldest[::-1]


def _last_used_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read_base(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None

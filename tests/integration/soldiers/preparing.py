"""Prepare many trees at once: `python -m tests.integration.soldiers.preparing HOST SOURCE FIRST END` (END excluded)."""

import asyncio
import sys
from pathlib import Path

from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.soldiers.sources import a_tree


async def prepare(host: Path, source: Path, numbers: range) -> None:
    trees = RunCheckouts(host / "repositories")
    await asyncio.gather(*(trees.prepare([a_tree(host, source, f"tree{number}")]) for number in numbers))


if __name__ == "__main__":
    asyncio.run(prepare(Path(sys.argv[1]), Path(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4]))))

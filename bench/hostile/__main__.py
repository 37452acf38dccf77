"""The attack by command line; the last line of its output are the figures."""

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.hostile.attack import KINDS, VARIANTS, Outcome, attack
from kingdom.backends.files import FilesBus
from kingdom.court import streams
from kingdom.court.sentinel.receiver import Receiver
from kingdom.log_output import configure_logs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run by command line; 0 only if nothing was breached."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=sys.modules["bench.hostile"].__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many inputs (default 10000)")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other inputs")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="where the figures go; - is the last line (default)"
    )
    parser.add_argument("--variant", choices=VARIANTS, help="attack a receiver that is broken on purpose")
    options = parser.parse_args(arguments)
    configure_logs(json=True, level=logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        outcome = asyncio.run(_run(Path(directory), options))
    for words in outcome.breaches[:20]:
        print(f"breach: {words}", file=sys.stderr)
    line = json.dumps(outcome.to_json(seed=options.seed, variant=options.variant))
    if options.json == "-":
        print(line)
    else:
        Path(options.json).write_text(line + "\n")
    return 1 if outcome.breaches else 0


async def _run(directory: Path, options: argparse.Namespace) -> Outcome:
    async with FilesBus(str(directory / "realm"), streams.TOPOLOGY, KINDS) as bus:
        return await attack(bus, options.count, options.seed, VARIANTS.get(options.variant, Receiver))


if __name__ == "__main__":
    # Asked to end, a bench still takes its files with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())

"""The command line of the attack. The last line of output has the figures."""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.hostile.attack import KINDS, VARIANTS, Outcome, attack
from bench.servers import exit_on_sigterm
from kingdom.backends.files import FilesBus
from kingdom.court import streams
from kingdom.court.sentinel.receiver import WebhookReceiver
from kingdom.log_output import configure_logs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attack; return 0 only without a breach."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=sys.modules["bench.hostile"].__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="the number of inputs (default 10000)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the inputs")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--variant", choices=VARIANTS, help="attack a deliberately broken receiver")
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
        return await attack(bus, options.count, options.seed, VARIANTS.get(options.variant, WebhookReceiver))


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())

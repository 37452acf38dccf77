"""Run all attempts and print what stopped each: `python -m tests.redteam [--profile strict|dev|off] [--json FILE]`."""

import argparse
import asyncio
import sys
from pathlib import Path

from kingdom.soldiers.sandbox.sandbox import Profile
from tests.redteam.suite import all_of_it, as_table, write_json


def main() -> int:
    """Return 0 if everything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=Profile, choices=list(Profile), default=Profile.STRICT)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcomes = asyncio.run(all_of_it(options.profile))
    sys.stdout.write(as_table(outcomes) + "\n")
    if options.json:
        write_json(outcomes, options.json)
    return int(any(each.succeeded for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())

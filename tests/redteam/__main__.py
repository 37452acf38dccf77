"""Run all attempts and print what stopped each: `python -m tests.redteam [--profile strict|dev|off] [--json FILE]`.

`--without-defences` tries those that can be tried with their defence removed, which shows that each can succeed.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from kingdom.log_output import configure_logs
from kingdom.soldiers.sandbox.sandbox import Profile
from tests.redteam.suite import AT_LEAST, CLASSES, all_of_it, as_table, without_defences, write_json


def main() -> int:
    """Return 0 if everything failed and there was enough of it, or if without defences each class has successes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Profile, choices=list(Profile), default=Profile.STRICT)
    parser.add_argument("--without-defences", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # What the house logs about the attempts is not for this table.
    configure_logs(json=False, level=logging.CRITICAL)
    outcomes = asyncio.run(without_defences() if options.without_defences else all_of_it(options.profile))
    sys.stdout.write(as_table(outcomes) + "\n")
    if options.json:
        write_json(outcomes, options.json)
    succeeded = {each.by for each in outcomes if each.succeeded}
    if options.without_defences:
        return int(succeeded != {each.by for each in CLASSES})
    return int(bool(succeeded) or len(outcomes) < AT_LEAST)


if __name__ == "__main__":
    sys.exit(main())

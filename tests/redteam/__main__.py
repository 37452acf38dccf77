"""Run all attempts and print their results: `python -m tests.redteam [--profile strict|dev|off] [--json FILE]`.

`--without-defenses` removes the defense against each attempt, to show that the attempt can succeed.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from kingdom.log_output import configure_logs
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from tests.redteam.suite import AT_LEAST, CLASSES, as_table, run_all_attempts, without_defenses, write_json


def main() -> int:
    """Return 0 if all attempts failed and there were enough, or, without defenses, if each class succeeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=SandboxProfile, choices=list(SandboxProfile), default=SandboxProfile.STRICT)
    parser.add_argument("--without-defenses", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # The warnings of the host would clutter the table.
    configure_logs(json=False, level=logging.CRITICAL)
    outcomes = asyncio.run(without_defenses() if options.without_defenses else run_all_attempts(options.profile))
    sys.stdout.write(as_table(outcomes) + "\n")
    if options.json:
        write_json(outcomes, options.json)
    succeeded = {each.by for each in outcomes if each.succeeded}
    if options.without_defenses:
        return int(succeeded != {each.by for each in CLASSES})
    return int(bool(succeeded) or len(outcomes) < AT_LEAST)


if __name__ == "__main__":
    sys.exit(main())

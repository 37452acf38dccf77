"""`python -m bench.mutants.fault_injection BACKEND SECONDS`: exits 1 if faults break a guarantee of the product."""

import asyncio
import logging
import sys
from datetime import timedelta

from bench.chaos.backends import BACKENDS
from bench.chaos.process import AS_IT_IS
from bench.chaos.scenarios import process_command
from kingdom.log_output import configure_logs
from kingdom.verify import TrialPlan
from kingdom.verify.trial import run_trial

# The same seed for every mutant, so that results are comparable.
_SEED = 7


def main() -> int:
    """Inject faults and check the history."""
    backend, seconds = sys.argv[1], float(sys.argv[2])
    configure_logs(json=True, level=logging.ERROR)
    plan = TrialPlan(
        seconds=seconds,
        seed=_SEED,
        poisons=1,
        fault_every=timedelta(milliseconds=500),
        drain=timedelta(minutes=2),
        command=process_command(backend, AS_IT_IS),
    )
    with BACKENDS[backend].place() as place:
        report = asyncio.run(run_trial(place.url, plan))
    for finding in report.violations[:5]:
        print(f"finding: {finding.kind.value}: {finding.subject}: {finding.detail}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())

"""A process under test that is broken on purpose: `python -m bench.chaos.process VARIANT`."""

import sys

from bench.chaos.variants import VARIANTS
from kingdom.verify import process

if __name__ == "__main__":
    VARIANTS[sys.argv[1]]()
    process.main()

"""`python -m bench.two_stores.process VARIANT DIRECTORY ARGUMENT …`: `kingdom`, perhaps a broken variant of it."""

import sys
from pathlib import Path

from bench.chaos.process import AS_IT_IS
from bench.chaos.variants_kafka import KAFKA_VARIANTS, run_scripts_in
from kingdom.cli.main import main

if __name__ == "__main__":
    variant, directory = sys.argv[1:3]
    run_scripts_in(Path(directory))
    if variant != AS_IT_IS:
        KAFKA_VARIANTS[variant]()
    sys.argv[1:] = sys.argv[3:]
    main()

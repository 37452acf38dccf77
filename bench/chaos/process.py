"""`python -m bench.chaos.process BACKEND VARIANT [CONTROLS]`: a process under test, perhaps a broken variant."""

import sys
from pathlib import Path

from bench.chaos.backends import BACKENDS, TRANSPORTS
from bench.chaos.controls import Controls
from bench.chaos.exposed import expose
from kingdom.verify import process

AS_IT_IS = "as_it_is"

if __name__ == "__main__":
    backend, variant = {**BACKENDS, **TRANSPORTS}[sys.argv[1]], sys.argv[2]
    for prepare in backend.prepare:
        prepare()
    if variant != AS_IT_IS:
        backend.variants[variant]()
    for controls in sys.argv[3:]:
        expose(Controls(Path(controls)), sys.argv[1])
    process.main()

"""The modules that the fork server of `tests.warm` imports: all commands, and programs that tests start often."""

import gc
from importlib import import_module

from kingdom.cli.loading import load_app
from kingdom.cli.nouns import NOUNS

PROGRAMS = (
    "tests.contract.child",
    "tests.integration.court.envoy.child",
    "tests.integration.court.petitions.child",
    "tests.integration.court.sentinel.sentinel_child",
    "tests.integration.soldiers.host_child",
)

for noun in NOUNS:
    load_app(noun)
for name in PROGRAMS:
    import_module(name)
# Garbage collection in a forked process would copy the memory of these modules.
gc.freeze()

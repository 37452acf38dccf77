"""What hosts give to agents in tests that are about something else than what agents may see."""

from kingdom.soldiers.quarters import Quarters
from kingdom.soldiers.sandbox.sandbox import SandboxProfile

# A strict sandbox costs each start up to a tenth of a second.
UNCONFINED = Quarters(profile=SandboxProfile.OFF)

"""What hosts give to agents in tests that are about something else than what agents may see."""

from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment

# A strict sandbox costs each start up to a tenth of a second.
UNCONFINED = AgentEnvironment(profile=SandboxProfile.OFF)

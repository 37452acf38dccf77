"""The environment of agents in tests that do not concern the sandbox."""

from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment

# A strict sandbox delays each start by up to a tenth of a second.
UNCONFINED = AgentEnvironment(profile=SandboxProfile.OFF)

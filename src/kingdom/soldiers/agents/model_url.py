"""The address at which an agent reaches its model."""

from kingdom.soldiers.agents.port import Launch

# The environment variable that overrides the address for an agent without a sandbox.
MODEL_URL = "KINGDOM_MODEL_URL"


def model_url(launch: Launch, vendor_url: str) -> str:
    """Return the address of the proxy if there is a sandbox; otherwise the one in the environment, or the vendor's."""
    return launch.sandbox.url if launch.sandbox else launch.environment.get(MODEL_URL) or vendor_url

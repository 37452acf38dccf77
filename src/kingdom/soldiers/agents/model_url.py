"""The address at which an agent reaches its model."""

from kingdom.soldiers.agents.port import Launch

# Overrides the address for an agent without a sandbox.
MODEL_URL = "KINGDOM_MODEL_URL"


def model_url(launch: Launch, vendor_url: str) -> str:
    """Return the proxy's address inside a sandbox; otherwise the address in the environment, or the vendor's."""
    return launch.sandbox.url if launch.sandbox else launch.environment.get(MODEL_URL) or vendor_url

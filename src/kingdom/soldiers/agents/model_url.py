"""Where an agent finds the server of its model."""

from kingdom.soldiers.agents.port import Launch

# Names the server to an agent without a sandbox.
MODEL_URL = "KINGDOM_MODEL_URL"


def model_url(launch: Launch, vendor_url: str) -> str:
    """Return the address of the gate; without a sandbox what the environment names, or else that of the vendor."""
    return launch.sandbox.url if launch.sandbox else launch.environment.get(MODEL_URL) or vendor_url

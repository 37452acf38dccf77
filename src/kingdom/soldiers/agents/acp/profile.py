"""The profile of an ACP agent: how it differs from other agents, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kingdom.soldiers.sandbox.prices import Price, price_of
from kingdom.soldiers.sandbox.vendors import Vendor


class CostSource(StrEnum):
    """Where an agent reports the usage of a turn."""

    # The tokens of each model response during the turn, and the tokens of the whole turn at its end.
    USAGE = "usage"
    # The tokens of the turn at its end, in an extension of the protocol.
    QUOTA = "quota"
    # The cost of the whole session in US dollars.
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpProfile:
    """How an agent is started, and where it deviates from the protocol.

    `arguments`, `environment` and `files` are templates: $folder is the private folder of the agent, $url the address
    of the model, $model its name, $instructions the system prompt, and $input, $cache_read, $output are its price.
    `files` are written below the folder before each start. `model` and `url` are defaults, and `prices` are keyed by
    model name.
    """

    name: str
    vendor: Vendor
    program: str
    npm_packages: str
    model: str
    url: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    cost_source: CostSource = CostSource.USAGE
    # The session mode without requests for permission; the sandbox limits what the agent may do.
    session_mode: str = ""
    # Whether a session is continued by loading it, which replays its history.
    loads_session: bool = False
    # Files that loading a session would overwrite; $session is the beginning of the session's id.
    conflicting_files: str = ""
    # Whether the agent ends when its input is closed.
    ends_with_input: bool = True
    # Whether a text without a message id comes from the adapter and not from the agent.
    has_notices: bool = False
    # Whether the id of a tool call begins with the name of the tool.
    tool_name_in_call_id: bool = False
    # A text in error messages that means that the agent has ended, although its adapter still runs.
    gone_error: str = ""
    # A path in the metadata of session updates. Its last element is the value there that means that the turn failed.
    failure_marker: tuple[str, ...] = ()

    def price(self, model: str, overrides: Mapping[str, Price]) -> Price:
        """Return the price of a model; unknown models have the highest known price, which is rarely too low."""
        return price_of(model, self.prices, overrides)

"""What tells one agent that speaks ACP from another: all of it data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kingdom.soldiers.sandbox.prices import Price, price_of
from kingdom.soldiers.sandbox.vendors import Vendor


class CostSource(StrEnum):
    """Where an agent tells what a turn has used up."""

    # The tokens of the turn in its end; on the way, those of each response of the model.
    USAGE = "usage"
    # The tokens of the turn in its end, among what the protocol does not know.
    QUOTA = "quota"
    # What the whole session has cost, in US dollars.
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpProfile:
    """How an agent is started, and where it goes its own way.

    `arguments`, `environment` and `files` are templates: $folder is what the agent has for itself, $url the server of
    the model, $model its name, $instructions what the agent shall know, and $input, $cache_read, $output are the price.
    `files` are written below the folder before each start. Prices go by the name of a model.
    """

    name: str
    vendor: Vendor
    program: str
    install: str
    model: str
    url: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    cost_source: CostSource = CostSource.USAGE
    # The mode of a session in which the agent asks nobody; what it may do is the sandbox's business.
    mode: str = ""
    # Whether a session goes on only by loading it, which tells all of it again.
    loads: bool = False
    # Files of a session that must be out of the way before it is loaded, with $session for the start of its name.
    aside: str = ""
    # Whether the agent ends when its input does.
    ends_with_input: bool = True
    # Whether text that belongs to no message is the adapter's own.
    notices: bool = False
    # Whether the name of a call begins with that of the tool.
    tool_in_id: bool = False
    # Words in an error that tell that the agent itself is gone, though not its adapter.
    gone: str = ""
    # The way to a word that tells that a turn failed which otherwise ends like any other, and the word.
    failed: tuple[str, ...] = ()

    def price(self, model: str, own: Mapping[str, Price]) -> Price:
        """Return the price of a model; one that nobody knows counts as the dearest, so that no budget is overdrawn."""
        return price_of(model, self.prices, own)

"""Effects: outside calls with a ledger, so that none is repeated without proof."""

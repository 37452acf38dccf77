"""Effects: calls to outside systems. A ledger prevents that a call is repeated without proof."""

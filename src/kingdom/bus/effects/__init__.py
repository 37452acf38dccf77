"""Effects: calls to outside systems. A ledger records each call, so that no call is repeated without proof."""

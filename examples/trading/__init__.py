"""An order pipeline for a crypto exchange, on the bus and its own tables. `docs/examples/trading.md` explains it."""

"""The checks, one module for each promise of the bus. Each check reads the evidence and yields violations."""

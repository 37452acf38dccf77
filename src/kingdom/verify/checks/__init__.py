"""The checks, one module per promise. Each check reads the evidence and yields violations."""

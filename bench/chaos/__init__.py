"""Chaos: run the bus with injected faults, and broken variants of it that the checker must catch."""

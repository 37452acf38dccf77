"""Chaos: the bus under fault injection, and broken variants that the checker must detect."""

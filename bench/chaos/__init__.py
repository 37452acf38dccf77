"""Chaos: the bus under a nemesis, and broken variants of it that the checker must catch."""

"""Mutants that nobody notices, each with the reason why it changes no promise; docs/guarantees.md repeats it."""

from collections.abc import Mapping

EXPLAINED: Mapping[str, str] = {}

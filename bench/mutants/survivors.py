"""Mutants that no test notices, each with the reason why it breaks no guarantee; docs/guarantees.md lists them too."""

from collections.abc import Mapping

EXPLAINED: Mapping[str, str] = {}

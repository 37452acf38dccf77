"""Agents that are a program per prompt, such as aider: they remember nothing, and report through a file."""

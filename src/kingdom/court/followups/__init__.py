"""Followups: pull requests that Kingdom opened, and the rounds of work on them until they are merged or closed."""

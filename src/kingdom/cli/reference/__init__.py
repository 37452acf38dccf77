"""Generates the pages of the reference from the code: `python -m kingdom.cli.reference PAGE` prints one."""

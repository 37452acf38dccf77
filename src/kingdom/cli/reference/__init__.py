"""The pages of the reference, made from what the code says: `python -m kingdom.cli.reference PAGE` prints one."""

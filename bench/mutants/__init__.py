"""Mutation testing of the bus: change its statements and code slightly, and check that the tests notice each change."""

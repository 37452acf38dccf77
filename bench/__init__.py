"""Measurements and torments of the bus, and the private servers that they and the tests use."""

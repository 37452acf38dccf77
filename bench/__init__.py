"""Benchmarks and fault injection for the bus, and the private servers that they and the tests use."""

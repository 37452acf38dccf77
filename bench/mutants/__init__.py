"""Mutation testing of the bus: small damages in its statements and its code, and whether our proof notices each."""

"""Soldiers: hosts that run agents in checkouts and execute the commands of the engine."""

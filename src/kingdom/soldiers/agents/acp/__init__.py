"""Agents of several vendors that speak the Agent Client Protocol (ACP), each described by a profile."""

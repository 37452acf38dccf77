"""Agents of several vendors that speak the Agent Client Protocol, told apart by a profile each."""

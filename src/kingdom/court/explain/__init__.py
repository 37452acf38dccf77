"""Explain one event, assignment or run: read its history from the store and build one timeline."""

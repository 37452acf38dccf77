"""Petitions: actions that agents request and the court performs, as far as a General's policy allows."""

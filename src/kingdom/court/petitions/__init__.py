"""Petitions: outputs that agents ask for and the court performs, as far as a General's policy allows."""

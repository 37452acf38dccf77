"""Whoever runs the roles of a court on one machine: their processes, and what is done about silent ones."""

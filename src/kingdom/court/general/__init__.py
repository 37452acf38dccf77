"""The Generals: each runs agents for the assignments in its field."""

"""Runs of agents: a pure model, and the reactions, records and use cases that make it durable."""

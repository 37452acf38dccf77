"""Runs of agents: a pure model, and around it the reactions, records and use cases that make it durable."""

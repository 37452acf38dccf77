"""The Generals: have assignments done by runs of agents, each in its own field."""

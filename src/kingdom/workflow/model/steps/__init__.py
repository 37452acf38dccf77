"""The functions that change a run. Each function records what happened, then decides what the run does next."""

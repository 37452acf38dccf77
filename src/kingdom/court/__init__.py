"""The roles of the court: they turn outside events into assignments, run them and inform people."""

"""The record of a run: the Workflow with its Works, Tasks, checkouts and checkpoints."""

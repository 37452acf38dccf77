"""Git checkouts of a run: clones, checkouts, checkpoints and rollbacks."""

"""Other queues with the same load, each in its own environment."""

"""Other queues with the same load, each in an environment of its own."""

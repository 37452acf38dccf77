"""The pure model of a run, without I/O: its messages, resources, record and steps."""

"""The live screen of `kingdom top`. `rows` and `details` do no I/O; other modules draw, or read the store."""

"""The live screen of `kingdom top`. `rows` and `details` are pure; other modules draw, or read the store."""

"""The live screen of `kingdom top`. `rows` and `details` are pure; the other modules draw and read."""

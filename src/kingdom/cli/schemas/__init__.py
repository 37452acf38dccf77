"""The JSON schemas of the files that people write."""

"""GitHub Apps: their keys, installations, tokens and permissions."""

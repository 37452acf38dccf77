"""The soldier host: it takes commands, runs them and replies."""

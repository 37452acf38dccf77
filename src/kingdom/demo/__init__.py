"""The demo: a whole court in a temporary directory, a scenario that runs in it, and its narration."""

"""Internal events: the typed catalog of what the system logs about itself."""

"""The web server of a court: its API and its live stream."""

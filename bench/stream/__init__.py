"""Check that clients of the live stream hold exactly the log, while servers are killed and connections are cut."""

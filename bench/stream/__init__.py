"""What clients of the live stream hold equals the log, whatever is killed and cut."""

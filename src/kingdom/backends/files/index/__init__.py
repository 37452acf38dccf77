"""What a process keeps in memory about the events and records of a store."""

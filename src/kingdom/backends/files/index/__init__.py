"""The indexes of events and records that a process keeps in memory."""

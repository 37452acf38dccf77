"""What the system observes of itself: the typed catalogue of internal events, and how a log entry looks."""

"""Running agents: checkouts, sessions, and the host that executes commands."""

"""`kingdom demo`: the command and its display."""

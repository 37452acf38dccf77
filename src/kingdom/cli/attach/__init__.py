"""`kingdom attach`: watch a run in tmux."""

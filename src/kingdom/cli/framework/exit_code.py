"""Exit codes of commands; 0 means success."""

FAILED = 1
USAGE = 2
UNREACHABLE = 3
WAITING = 4

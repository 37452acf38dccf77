"""What a command's exit code means; 0 is: done."""

FAILED = 1
USAGE = 2
UNREACHABLE = 3
WAITING = 4

"""The operating system: disk operations, the lock between processes, and the thread that waits for syncs."""

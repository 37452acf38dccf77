"""Compare the bus on files with bare loops that do the same disk operations, and with other file queues."""

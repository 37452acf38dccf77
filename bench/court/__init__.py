"""A whole court as real processes: stand-ins, every role, a soldier host, and the actions of people."""

"""The checks, by promise: each reads the evidence and yields what is wrong. All pure."""

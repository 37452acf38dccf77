"""Check a machine, a store and the external services; each problem comes with a fix of one line."""

"""What can be wrong with a machine, a store and the ways outside: small checks, each with a fix of one line."""

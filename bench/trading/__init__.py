"""Trading: the order pipeline of `examples/trading` under kills and faults, and broken variants that must be caught."""

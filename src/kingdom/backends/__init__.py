"""Where it is kept: one folder per store, all behind the port of `kingdom.bus`."""

"""The backends: one package per store, each implementing the ports of `kingdom.bus`."""

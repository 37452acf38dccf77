"""The backends: one package per store, each implementing the interfaces of `kingdom.bus`."""

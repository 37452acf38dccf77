"""The Sentinel: turns outside activity into events, each exactly once."""

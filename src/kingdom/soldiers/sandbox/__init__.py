"""Isolation of the programs that Kingdom starts: files, network, resources and model calls."""

"""Transcripts of runs for readers on any machine: the copies in the store, and how to read and follow them."""

"""Agents of several kinds behind one interface, and the transcripts that they all write."""

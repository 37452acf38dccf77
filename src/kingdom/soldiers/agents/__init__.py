"""Agents of several kinds behind one port, and the transcripts that they all write."""

"""Petitions on GitHub: who we are there, the requests, and how each kind is performed exactly once."""

"""The King: decides which General gets what, and when."""

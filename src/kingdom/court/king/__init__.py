"""The King: decides which General gets which event, and when."""

"""Hostile inputs for the receiver of webhooks, by the thousand."""

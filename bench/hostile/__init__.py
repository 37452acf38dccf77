"""Thousands of hostile inputs for the receiver of webhooks."""

"""The Chamberlain: watches health, budget, heartbeats, sessions and storage."""

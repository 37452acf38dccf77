"""Failover: the primary of a pair of servers is killed under load, and its standby is promoted, again and again."""

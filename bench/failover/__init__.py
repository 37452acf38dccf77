"""Failover: repeatedly kill the primary of a pair of servers under load and promote its standby."""

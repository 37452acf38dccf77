"""Checks, statuses and job logs of commits."""

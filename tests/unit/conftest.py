"""Hypothesis on a noisy machine: the number of examples bounds a test, not the clock."""

from hypothesis import HealthCheck, settings

settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")

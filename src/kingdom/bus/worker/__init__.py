"""The worker of the bus: it claims events, runs their handlers and keeps their leases."""

from kingdom.bus.worker.worker import Runnable, Worker

__all__ = ["Runnable", "Worker"]

"""The settings of the pipeline: one environment variable each."""

import os
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The addresses and the time limits of the pipeline."""

    database_url: str
    exchange_url: str
    push_url: str
    owner_id: str
    calls_per_second: float
    # How long a call to the exchange or to the push service may take.
    answer: timedelta
    # How long after a lost answer the exchange is asked for the order, and how often an open order is looked at.
    lookup_after: timedelta
    # How long an attempt may stay SENT before it is looked up, even if its command is dead.
    sent_limit: timedelta
    # How long an attempt may stay UNKNOWN before its market is suspended.
    unknown_limit: timedelta
    lease: timedelta

    @classmethod
    def read(cls) -> "Settings":
        """Read the environment."""
        get = os.environ.get  # noqa: TID251 - an example has its own settings

        def seconds(name: str, default: str) -> timedelta:
            return timedelta(seconds=float(get(name, default)))

        return cls(
            database_url=get("DATABASE_URL", "postgresql://127.0.0.1/everbit"),
            exchange_url=get("EXCHANGE_URL", "http://127.0.0.1:8082"),
            push_url=get("PUSH_URL", "http://127.0.0.1:8083"),
            owner_id=get("OWNER_ID", "OWNER"),
            calls_per_second=float(get("EXCHANGE_CALLS_PER_SECOND", "8")),
            answer=seconds("ANSWER_SECONDS", "3"),
            lookup_after=seconds("LOOKUP_AFTER_SECONDS", "1"),
            sent_limit=seconds("SENT_LIMIT_SECONDS", "60"),
            unknown_limit=seconds("UNKNOWN_LIMIT_SECONDS", "60"),
            lease=seconds("LEASE_SECONDS", "30"),
        )

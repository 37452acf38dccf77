"""The configuration of a process under test."""

from typing import Literal

import msgspec

from kingdom.settings import Settings

# The number of partitions of each topic.
PARTITIONS = 4
# A steady worker gets no faults. If it loses a lease, the bus is the cause.
Role = Literal["publisher", "worker", "steady", "courier"]


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one process. It is sent by standard input, because the URL may contain a password.

    `failure_rate` is the probability that a reaction fails by chance. `pause_seconds` is the average pause of a
    publisher between two transactions. Kafka with the brokers `kafka_servers` carries the streams `carried`. `parent`
    is the process that has started it.
    """

    role: Role
    name: str
    url: str
    schema: str
    directory: str
    target_port: int
    seed: int
    lease_seconds: float
    failure_rate: float
    pause_seconds: float
    parent: int = 0
    steady_lease_seconds: float = 0.0
    kafka_servers: str = ""
    carried: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """Return the settings of the process."""
        servers = self.kafka_servers or None
        return Settings(database_url=self.url, schema=self.schema, kafka_servers=servers, kafka_partitions=PARTITIONS)

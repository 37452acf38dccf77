"""Kafka as the transport of streams whose records stay in PostgreSQL."""

from kingdom.backends.kafka.brokers import Brokers
from kingdom.backends.kafka.bus import KafkaBus
from kingdom.backends.kafka.courier import Courier
from kingdom.backends.kafka.trial_store import KafkaTrialStore

__all__ = ["Brokers", "Courier", "KafkaBus", "KafkaTrialStore"]

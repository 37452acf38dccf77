"""Apache Kafka on this machine for tests and benches."""

"""The bus beside bare loops and other queues: rates, latency and processor time per event, in one interleaved run."""

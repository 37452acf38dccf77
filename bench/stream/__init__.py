"""Check that clients of the live stream get each log entry once and in order, despite kills and cut connections."""

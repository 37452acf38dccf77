"""The Envoy: sends messages and questions to people, and receives their answers."""

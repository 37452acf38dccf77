"""The Envoy: tells people, and asks them."""

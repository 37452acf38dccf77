"""Start programs, and end them together with everything that they started."""

"""Take turns with an agent within limits of time and money, and read its result."""

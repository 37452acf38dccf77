"""What a durable step of the engine costs: beside dbos on the same PostgreSQL, and as stored runs grow."""

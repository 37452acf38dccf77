"""The cost of a durable step of the engine, compared with dbos and as stored runs grow."""

"""Kingdom runs AI coding agents on a durable event bus."""

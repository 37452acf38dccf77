"""`kingdom event …`: events from outside."""

"""`kingdom general …`: the Generals."""

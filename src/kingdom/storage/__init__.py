"""Export everything that a store holds, and import it into another kind of store."""

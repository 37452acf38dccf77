"""`kingdom show` and `kingdom why`: look up anything by its id."""

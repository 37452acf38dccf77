"""The files that people see: where they are, what they contain, and how journal entries become files."""

"""The functions behind the routes, a module per group of nouns."""

"""The web server without a store."""

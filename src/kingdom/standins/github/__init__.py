"""A local server that behaves like the REST API and the webhooks of GitHub, as one user sees it."""

"""A local server that behaves like the REST API and the webhooks of GitHub.

All requests come from one user, the account of Kingdom. This package calls it "our user".
"""

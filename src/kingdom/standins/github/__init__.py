"""A local server that behaves like the API and the webhooks of GitHub.

Requests come from one user, the account of Kingdom, which this package calls "our user", or from GitHub Apps.
"""

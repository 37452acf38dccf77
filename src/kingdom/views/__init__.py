"""The types of what commands print with --json; other user interfaces can use them too.

Types of the domain that are printed as they are stay in their own packages.
"""

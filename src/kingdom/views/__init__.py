"""The types of the documents that commands print with --json. Other user interfaces can use them too.

Domain types that are printed unchanged stay in their own packages.
"""

"""The part of the GraphQL API that the REST API lacks: threads, conditional pushes and automatic merges."""

"""The tools that agents call to report results, ask people, make petitions and remember."""

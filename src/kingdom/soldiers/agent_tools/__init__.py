"""The tools that agents call to report and read results, ask people, make petitions and remember."""

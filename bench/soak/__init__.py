"""Minutes of full load: rate and sizes must stay constant, also after a pinned xmin."""

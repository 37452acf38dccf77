"""Minutes of publishing and handling under full load: rate and sizes must stay flat, also after a pinned xmin."""

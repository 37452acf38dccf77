"""`kingdom explain`: a timeline as text, HTML and SVG."""

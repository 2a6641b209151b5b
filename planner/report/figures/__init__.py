"""Pictures of a sweep for papers and slides, as PNG and SVG; they need matplotlib."""

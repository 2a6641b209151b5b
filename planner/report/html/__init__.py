"""Reports of plans and sweeps as one HTML file that opens offline."""

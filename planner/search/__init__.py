"""Search over degrees cases: boxes, bounds, incumbents, models and the certificate."""

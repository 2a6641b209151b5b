"""Op tables found for one pipeline: list scheduling, neighbourhoods, periodic orders."""

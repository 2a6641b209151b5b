"""What the results of a sweep say: its table, the winners with their margins, the fronts."""

"""Pipeline schedules, their event graphs and what they keep in memory."""

"""Why a plan: what binds it, what every forced alternative costs, what more would gain."""

"""Re-derives the proof in a solve document from the instance, without solver or formulation."""

"""The event simulation of a plan: what happens on every stage and link of one iteration."""

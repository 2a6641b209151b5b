"""How the planning problem becomes variables and constraints; free of solvers and files."""

def explain_infeasibility(problem, tree, bounds):
    return "infeasible", {}

"""Pure cost functions: parameters, FLOPs, times and bytes of a training job.

Units are seconds, bytes and FLOP (a multiply-add is two).  No function here reads a file other than
the efficiency table of the package, and none knows a solver.
"""

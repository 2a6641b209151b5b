"""What people see: the readable report, progress, files and exit codes."""

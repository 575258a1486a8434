"""Stack: runs the services of one machine as child processes: starts, watches and restarts them, and divides the cores."""

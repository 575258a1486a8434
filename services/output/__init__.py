"""Output of a process: non-blocking writes to stdout and stderr, and redirection of libraries' prints into the log."""

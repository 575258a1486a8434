"""Stack: the services of one machine as child processes: started, watched, restarted, placed on cores, and found by address."""

"""Native code on strangers' input, in a process with limits of memory and time."""

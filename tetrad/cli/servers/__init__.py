"""Commands about the running servers of this user on this machine."""

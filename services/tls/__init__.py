"""The identity of a process: files that may change at any time, and channels that follow them."""

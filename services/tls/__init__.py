"""The TLS identity of a process: files that may change at any time, and channels that use the current files."""

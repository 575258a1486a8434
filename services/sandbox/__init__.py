"""Runs native code on untrusted input in a process with limits of memory and time."""

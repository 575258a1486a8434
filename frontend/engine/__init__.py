"""Engine cores: their sessions, their requests, and recovery from the loss of an engine core."""

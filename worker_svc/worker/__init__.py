"""The worker's states (started, loaded, ready, asleep), its compute thread, and the detection of a lost device."""

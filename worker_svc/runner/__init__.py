"""Model runner: one step on a device, from plan to tokens."""

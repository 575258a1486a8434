"""KV memory: the blocks of a device, and those of the second tier in host memory."""

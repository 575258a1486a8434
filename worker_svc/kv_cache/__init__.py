"""KV memory: the KV blocks of a device, and the blocks of the second tier in host memory."""

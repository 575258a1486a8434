"""The gRPC servicers of the engine core, and the encoding of its sessions' messages."""

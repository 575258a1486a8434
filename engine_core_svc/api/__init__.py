"""The gRPC servicers of the engine core, and the wire of its sessions."""

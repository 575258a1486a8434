"""The gRPC servicers of the worker, and their wire modules."""

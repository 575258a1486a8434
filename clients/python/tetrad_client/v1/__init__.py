"""Generated stubs of tetrad.v1: the public API."""

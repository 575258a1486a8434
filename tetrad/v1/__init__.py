"""Generated from protos/tetrad/v1 by `make protos`; do not edit anything here but this line."""

"""Models of this machine: `tetrad pull`, `tetrad list`, `tetrad show`."""

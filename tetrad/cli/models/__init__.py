"""Commands about the models of this machine: `tetrad pull`, `tetrad list`, `tetrad show`."""

"""Load: what `tetrad bench` is made of."""

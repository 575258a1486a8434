"""Load: the parts of `tetrad bench`: datasets, load generator, figures and reports."""

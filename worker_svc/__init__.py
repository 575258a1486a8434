"""The worker: runs each step's plan on one device. The only importer of torch."""

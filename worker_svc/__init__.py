"""The worker: runs each step's plan on one device. No other service imports torch."""

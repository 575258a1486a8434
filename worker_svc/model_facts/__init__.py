"""Facts of a model that its config.json gives, and whether a device can run it. Never imports torch."""

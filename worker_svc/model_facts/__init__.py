"""Facts of a model, as values read from its config.json. Never imports torch."""

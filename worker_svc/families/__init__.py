"""Families of models: what each is made of, read from a model's config. Never imports torch."""

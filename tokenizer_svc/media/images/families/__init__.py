"""Families: how the models of each family write an image in a prompt."""

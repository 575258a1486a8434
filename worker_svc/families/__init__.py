"""Families of models: functions that read the structure of a model from its config. Never imports torch."""

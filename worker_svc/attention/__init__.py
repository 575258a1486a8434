"""Attention over KV pages: one interface (interface.py), one implementation per device."""

"""Attention over KV pages: one interface (interface.py), and one implementation per device."""

"""Conversations: chat templates, rendered in a process of their own."""

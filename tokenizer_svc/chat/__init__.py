"""Conversations: chat templates, rendered in their own processes."""

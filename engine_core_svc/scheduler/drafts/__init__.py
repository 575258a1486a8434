"""Proposers of drafts that need only token ids, and the judgement of how many of their drafts pay for their time in a step."""

"""Proposers of drafts that need token ids only, and the judgement of how many of their drafts are worth a step's time."""

"""Speech: cuts recordings into pieces that a model reads at once, and makes the prompts whose continuations are their texts."""

"""vLLM's scale-out API: converts requests to token ids (render), generates from these, and converts ids to answers."""

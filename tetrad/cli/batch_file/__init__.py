"""OpenAI's batch files: reads requests from lines, sends them, and writes results as lines."""

"""/v1/chat/completions: bodies, conversations, answers and the route."""

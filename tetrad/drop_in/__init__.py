"""What vLLM's names mean here where they are not Tetrad's own: one verdict for each, and the classes that take them."""

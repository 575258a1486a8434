"""Media: preprocesses the images of prompts in processes of their own, and expands their placeholders."""

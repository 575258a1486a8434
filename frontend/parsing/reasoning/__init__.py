"""The formats of reasoning, one file per format."""

"""Common parts of all formats: interfaces, pieces, scanners and writers."""

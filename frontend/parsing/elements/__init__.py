"""Parts that all formats share: interfaces, pieces, scanners and writers."""

"""Serves the files of web pages."""

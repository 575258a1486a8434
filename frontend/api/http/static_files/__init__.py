"""Files of web pages, as they are served."""

"""The console: a web page that shows how the services are, what they do, and talks to the model."""

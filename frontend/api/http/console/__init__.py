"""The console: a web page with the state and the load of all services, and a chat with the model."""

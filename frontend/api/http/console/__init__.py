"""The console: a web page that shows the state and the load of all services, and has a chat with the model."""

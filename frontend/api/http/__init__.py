"""The HTTP APIs: parse requests and write answers, one folder per API. AsyncLLM runs the requests."""

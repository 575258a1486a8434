"""Common parts of all services: server start and drain, channels, health, errors, logs, settings, metrics."""

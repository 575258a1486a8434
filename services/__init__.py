"""What every service needs and none owns: server start and drain, channels, health, errors, logs, settings, metrics."""

"""Fields, objects and errors that several HTTP APIs share."""

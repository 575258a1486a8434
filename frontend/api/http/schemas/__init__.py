"""Common fields, objects and errors of several HTTP APIs."""

"""Common parts of the foreign APIs: open calls, operator permissions, refusals of unsupported fields."""

"""Common parts of the foreign APIs: open calls, checks of operators, refusals of unsupported fields."""

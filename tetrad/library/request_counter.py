"""RequestCounter: numbers requests; vLLM's Counter."""


class RequestCounter:
    """Returns consecutive numbers.

    Args:
        start: first number.

    Attributes:
        counter: next number.
    """

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __iter__(self) -> "RequestCounter":
        return self

    def __next__(self) -> int:
        number = self.counter
        self.counter += 1
        return number

    def reset(self) -> None:
        """Restart at 0."""
        self.counter = 0

"""LoggedCount: counts events that a broken peer may cause without end; logs the first one and each doubling of the number."""

from tetrad.services.log import get_logger

log = get_logger()


class LoggedCount:
    """One kind of event.

    Args:
        event: its name in the log.
    """

    def __init__(self, event: str) -> None:
        self._event = event
        self.count = 0

    def add(self, **fields: object) -> None:
        """Count an event; its fields are logged if it is."""
        self.count += 1
        if self.count & (self.count - 1) == 0:
            log.warning(self._event, count=self.count, **fields)

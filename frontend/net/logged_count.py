"""LoggedCount: counts events that a faulty peer may cause without limit; logs the first one and each doubling of the number."""

from tetrad.services.log import get_logger

log = get_logger()


class LoggedCount:
    """One kind of event.

    Args:
        event: name of the event in the log.
    """

    def __init__(self, event: str) -> None:
        self._event = event
        self.count = 0

    def add(self, **fields: object) -> None:
        """Count an event; `fields` are logged if this event is logged."""
        self.count += 1
        if self.count & (self.count - 1) == 0:
            log.warning(self._event, count=self.count, **fields)

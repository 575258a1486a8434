"""PoolingWindow: limits the number of prompt tokens of pooling requests in the engine cores.

A request may have thousands of inputs. Engine cores receive enough of them to be busy; the rest wait here. The first input of a
request is sent at once; its next inputs, up to _TURN_TOKENS, have a turn soon. So a small request that arrives after large ones
waits for a few steps, not for all of their inputs. The other inputs of large requests are sent in order of arrival, so that the
first request is answered first; they share the limit with the turns of new requests. Used by the pooling intake; one event
loop.
"""

from collections import deque
from collections.abc import Callable, Sequence

_TURN_TOKENS = 1024
"""Number of tokens that a request sends in its turn, before the next waiting request has its turn."""


class PoolingTurn:
    """The waiting inputs of one request.

    Args:
        window: the window that limits the sending.
        sizes: the number of tokens of each input.
        send: called with the index of each input, in order.
    """

    def __init__(self, window: "PoolingWindow", sizes: Sequence[int], send: Callable[[int], None]) -> None:
        self._window, self._sizes, self._send = window, sizes, send
        self._num_sent = self._num_sent_tokens = self._num_held_tokens = 0
        self._has_ended = False

    def start(self) -> None:
        """Send the first input at once, and the others as the window allows."""
        self._send_next()
        self._window.enter(self)

    @property
    def has_more(self) -> bool:
        """Whether the request has inputs to send."""
        return not self._has_ended and self._num_sent < len(self._sizes)

    @property
    def had_turn(self) -> bool:
        """Whether the request has sent the tokens of its turn, so that new requests have priority."""
        return self._num_sent_tokens >= _TURN_TOKENS

    def send_some(self, most: int) -> None:
        """Send inputs until these have `most` tokens or more; at least one input."""
        used = 0
        while self.has_more and used < most:
            used += self._send_next()

    def note_answer(self, place: int) -> None:
        """Release the tokens of an input that has ended."""
        if not self._has_ended:
            self._num_held_tokens -= self._sizes[place]
            self._window.release(self._sizes[place])

    def end(self) -> None:
        """Release all tokens of the request and send no more inputs."""
        if not self._has_ended:
            self._has_ended = True
            self._window.release(self._num_held_tokens)

    def _send_next(self) -> int:
        place = self._num_sent
        self._num_sent += 1
        self._num_sent_tokens += self._sizes[place]
        self._num_held_tokens += self._sizes[place]
        self._window.hold(self._sizes[place])
        self._send(place)
        return self._sizes[place]


class PoolingWindow:
    """The pooling window of one model.

    Args:
        most_tokens: returns the present maximum number of tokens in the engine cores.
    """

    def __init__(self, most_tokens: Callable[[], int]) -> None:
        self._most_tokens = most_tokens
        self._num_tokens = 0
        self._new: deque[PoolingTurn] = deque()
        self._large: deque[PoolingTurn] = deque()  # requests that have had their turn
        self._is_new_next = True

    def enter(self, turn: PoolingTurn) -> None:
        """Add a request, whose waiting inputs are sent from now on."""
        self._new.append(turn)
        self._give_turns()

    def hold(self, num_tokens: int) -> None:
        """Count tokens that are being sent."""
        self._num_tokens += num_tokens

    def release(self, num_tokens: int) -> None:
        """Subtract tokens that have been answered, and send waiting inputs."""
        self._num_tokens -= num_tokens
        self._give_turns()

    def _give_turns(self) -> None:
        most = self._most_tokens()
        while (self._new or self._large) and self._num_tokens < most:
            is_new = bool(self._new) and (self._is_new_next or not self._large)
            self._is_new_next = not is_new
            turn = (self._new if is_new else self._large)[0]
            turn.send_some(min(most - self._num_tokens, _TURN_TOKENS))
            if is_new and (turn.had_turn or not turn.has_more):
                self._new.popleft()
                if turn.has_more:
                    self._large.append(turn)
            elif not is_new and not turn.has_more:
                self._large.popleft()

"""RequestQueue: sequences that are passed over, displaced by a preempted one, or served out of turn keep their order."""

from itertools import count
from random import Random

import pytest

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.policy import ORDERS, RequestQueue


def test_a_request_that_is_passed_over_hides_its_call_until_the_next_look():
    queue = RequestQueue(ORDERS["fcfs"])
    requests = [Request(key, f"r{key}", [1], 1, 9, sequence_number=key, call=(1, key // 2)) for key in range(2, 6)]
    for request in requests:
        queue.add(request)

    queue.pass_over(queue.peek())
    second = queue.peek()
    queue.pass_over(second)

    assert (second, queue.peek()) == (requests[2], None)
    queue.look_again()
    assert queue.peek() is requests[0]


def test_a_sequence_that_was_displaced_by_a_preempted_one_is_passed_over_once():
    queue = RequestQueue(ORDERS["fcfs"])
    first, second = [Request(key, f"r{key}", [1], 1, 9, sequence_number=key, call=(1, 1)) for key in (1, 2)]
    for request in (first, second):
        queue.add(request)
    queue.take(first)
    queue.add(first)
    queue.take(first)

    queue.pass_over(queue.peek())

    assert queue.peek() is None


def test_a_sequence_that_is_served_out_of_turn_has_the_place_of_its_arrival():
    """Such as one that runs alone, since it may have crashed a worker."""
    queue = RequestQueue(ORDERS["fcfs"])
    requests = [Request(key, f"r{key}", [1], 1, 9, sequence_number=key, call=(1, 1)) for key in (1, 2)]
    for request in requests:
        queue.add(request)

    queue.only = 2
    queue.take(queue.peek())

    assert requests[1].place == 2.0


class Walk:
    """A queue beside the list of its members; sequences of a few calls wait, run, and are preempted."""

    def __init__(self, seed):
        self.random, self.queue = Random(seed), RequestQueue(ORDERS["fcfs"])
        self.waiting, self.running, self.numbers = [], [], count(1)

    def add(self):
        number = next(self.numbers)
        call = (1, self.random.randint(1, 9))
        self._wait(Request(number, f"r{number}", [1], 1, 9, sequence_number=number, call=call))

    def start(self):
        if (first := self.queue.peek()) is not None:
            self.queue.take(first)
            self.waiting.remove(first)
            self.running.append(first)

    def remove(self):
        if self.waiting:
            request = self.random.choice(self.waiting)
            self.queue.remove(request)
            self.waiting.remove(request)

    def stop(self):
        if self.running:
            request = self.running.pop(self.random.randrange(len(self.running)))
            if self.random.random() < 0.5:  # otherwise it has ended
                self._wait(request)
            if request.call not in {each.call for each in self.running}:
                self.queue.note_idle(request.call)

    def heads(self):
        """Return the first sequence of each call, in order; those without a place follow the others of their call."""
        calls = {}
        for request in sorted(self.waiting, key=lambda each: (each.place is None, each.place or 0, each.key)):
            calls.setdefault(request.call, request)
        return sorted(calls.values(), key=ORDERS["fcfs"].key)

    def seen(self, most):
        """Return the requests that a plan looks at: after `most`, only those of calls that run none."""
        found = []
        while (request := self.queue.peek(further=len(found) < most)) is not None:
            found.append(request)
            self.queue.pass_over(request)
        self.queue.look_again()
        return found

    def _wait(self, request):
        self.waiting.append(request)
        self.queue.add(request)


@pytest.mark.parametrize("seed", range(10))
def test_requests_are_looked_at_in_their_order_and_those_of_idle_calls_in_any_case(seed):
    walk = Walk(seed)
    for _ in range(300):
        walk.random.choice([walk.add, walk.add, walk.start, walk.remove, walk.stop])()
        heads, running = walk.heads(), {each.call for each in walk.running}
        few = walk.seen(most=2)

        assert walk.seen(most=100) == heads
        assert few[:2] == heads[:2]
        assert {each.key for each in heads if each.call not in running} <= {each.key for each in few}

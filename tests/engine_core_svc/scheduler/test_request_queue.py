"""RequestQueue: sequences that are passed over, displaced by a preempted one, or served out of turn keep their order."""

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

"""The window of pooling requests: the number in flight, and the order in which the others follow."""

from tetrad.frontend.llm.pooling_window import PoolingTurn, PoolingWindow


class Sender:
    """A request whose inputs have `size` tokens each; `sent` are the places that went out."""

    def __init__(self, window, number, size=100):
        self.sent = []
        self.turn = PoolingTurn(window, [size] * number, self.sent.append)

    def answer(self, number):
        for place in self.sent[:number]:
            self.turn.note_answer(place)


def test_no_more_than_the_window_is_sent():
    sender = Sender(PoolingWindow(lambda: 2000), 100)

    sender.turn.start()

    assert sender.sent == list(range(20))


def test_an_answer_makes_room_for_the_next_input():
    sender = Sender(PoolingWindow(lambda: 2000), 100)
    sender.turn.start()

    sender.answer(3)

    assert sender.sent == list(range(23))


def test_the_first_input_of_a_request_waits_for_nobody():
    window = PoolingWindow(lambda: 2000)
    Sender(window, 100).turn.start()
    late = Sender(window, 5)

    late.turn.start()

    assert late.sent == [0]


def test_a_new_request_has_its_turn_before_a_large_one_goes_on():
    window = PoolingWindow(lambda: 3000)
    large, small = Sender(window, 100), Sender(window, 8)
    large.turn.start()
    small.turn.start()

    large.answer(20)

    assert len(small.sent) == 8
    assert 30 < len(large.sent) < 50


def test_large_requests_are_sent_in_the_order_of_their_arrival():
    window = PoolingWindow(lambda: 3000)
    first, second = Sender(window, 200), Sender(window, 200)
    first.turn.start()
    second.turn.start()

    for place in range(150):
        first.turn.note_answer(place)

    assert len(first.sent) > 150
    assert len(second.sent) < 20


def test_many_new_requests_leave_large_ones_half_of_the_room():
    window = PoolingWindow(lambda: 3000)
    large = Sender(window, 100)
    large.turn.start()
    for _ in range(20):
        Sender(window, 10).turn.start()

    large.answer(30)

    assert len(large.sent) == 35


def test_a_request_that_ends_gives_its_room_back():
    window = PoolingWindow(lambda: 2000)
    first, second = Sender(window, 100), Sender(window, 100)
    first.turn.start()
    second.turn.start()

    first.turn.end()

    assert len(second.sent) == 20
    assert len(first.sent) == 20


def test_an_input_larger_than_the_window_is_sent_alone():
    sender = Sender(PoolingWindow(lambda: 50), 3, size=100)
    sender.turn.start()

    sender.answer(1)

    assert sender.sent == [0, 1]

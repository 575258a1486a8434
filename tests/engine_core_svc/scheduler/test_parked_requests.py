"""Parked requests: the line of the adapters, and the order of the requests of each."""

from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.parked_requests import LAST_TURN, ORDERS_OF_ARRIVAL, ParkedRequests


def parked(number, key, priority=0):
    adapter = Adapter(LoraRef(f"a{key}", key, f"/a{key}"), key)
    return Request(number, f"r{number}", [1], 1, 9, priority=priority, sequence_number=number, adapter=adapter)


def test_an_adapter_stands_in_line_at_the_place_of_its_first_request():
    line = ParkedRequests(ORDERS_OF_ARRIVAL["fcfs"])
    third, first, second = parked(3, key=7), parked(1, key=7), parked(2, key=8)
    for request in (third, second, first):
        line.add(request)

    assert list(line) == [7, 8]
    assert sorted(line, key=line.turn_of) == [7, 8]
    assert line.of(7) == [first, third]
    line.remove(first)
    assert sorted(line, key=line.turn_of) == [8, 7]


def test_urgent_requests_come_first_with_priorities():
    line = ParkedRequests(ORDERS_OF_ARRIVAL["priority"])
    for number, key, priority in ((1, 7, 0), (2, 8, 1)):
        line.add(parked(number, key, priority))

    assert sorted(line, key=line.turn_of) == [8, 7]


def test_an_adapter_without_requests_is_not_listed():
    line = ParkedRequests(ORDERS_OF_ARRIVAL["fcfs"])
    first, second = parked(1, key=7), parked(2, key=8)
    line.add(first)
    line.add(second)

    line.remove(first)
    assert line.take(8) == [second]
    assert (len(line), 7 in line, 8 in line) == (0, False, False)
    assert (line.of(7), line.turn_of(7)) == ([], LAST_TURN)

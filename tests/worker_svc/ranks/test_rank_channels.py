"""Rank channels: the end of a group that has been replaced leaves the connections of the next group open."""

from threading import Event, Thread

import pytest

from tetrad.worker_svc.core.ranks import GroupPlace, Shard, Stage
from tetrad.worker_svc.runner import rank_channels
from tetrad.worker_svc.runner.rank_channels import RankChannels


class SlowSums:
    """Collectives whose first `disconnect` waits for the test; records the calls."""

    def __init__(self):
        self.calls, self.is_leaving, self.may_leave = [], Event(), Event()

    def connect(self, met, name, timeout_s):
        self.calls.append("connect")

    def disconnect(self):
        if not self.is_leaving.is_set():
            self.is_leaving.set()
            self.may_leave.wait(10)
        self.calls.append("disconnect")


@pytest.fixture
def sums(monkeypatch):
    class Met:
        """A Rendezvous of ranks that have met."""

        def __init__(self, place):
            pass

        def connect(self, *args):
            return None

        def close(self):
            pass

    monkeypatch.setattr(rank_channels, "Rendezvous", Met)
    return SlowSums()


def test_the_end_of_an_old_group_does_not_close_the_connections_of_the_next_one(sums):
    """A follower's thread ends the old group while the compute thread joins the next one."""
    channels = RankChannels(Shard(1, 2), Stage(), sums, lambda *_: None)
    channels.epoch = 1

    ending = Thread(target=channels.disconnect, args=(1,))
    ending.start()
    assert sums.is_leaving.wait(10)
    joining = Thread(target=channels.connect, args=(GroupPlace(Shard(1, 2), 2, ["unix:/a", "unix:/b"]),))
    joining.start()
    joining.join(0.2)
    sums.may_leave.set()
    ending.join(10)
    joining.join(10)

    assert sums.calls == ["disconnect", "disconnect", "connect"]
    assert channels.epoch == 2

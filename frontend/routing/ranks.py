"""Ranks: finds the engine core of a pinned request by its rank. Ignores health; called by the engine pool only.

If all engine cores report different ranks, these are used; otherwise their positions. This is decided when all have reported.
An engine core without a report, such as a Pod that has just started, does not change the last decision.
"""

from collections.abc import Sequence

from tetrad.frontend.routing.member import Member
from tetrad.services.errors import InvalidRequest, Unavailable


class Ranks:
    """The ranks of one pool's engine cores."""

    def __init__(self) -> None:
        self._are_own: bool | None = None  # None: not decided yet

    def note(self, members: Sequence[Member]) -> None:
        """Decide from the ranks reported so far whether the engine cores' own ranks are used."""
        present = [member for member in members if not member.is_gone]
        said = [member.own_rank for member in present if member.own_rank is not None]
        if len(set(said)) < len(said):
            self._are_own = False
        elif said and len(said) == len(present):
            self._are_own = True

    def find(self, members: Sequence[Member], rank: int) -> Member:
        """Return the engine core of a rank.

        Args:
            members: all members in order of position; members that are gone have no position.
            rank: 0 or more.

        Raises:
            Unavailable: the engine core is not connected, or its rank is not known yet.
            InvalidRequest: there is no such rank.
        """
        self.note(members)
        present = [member for member in members if not member.is_gone]
        ranks = self._ranks(present)
        if rank in ranks:
            return ranks[rank]
        count = max(ranks, default=-1) + 1
        is_open = self._are_own is not False and any(member.own_rank is None for member in present)
        if is_open or 0 <= rank < count:
            raise Unavailable(f"The engine core of data_parallel_rank {rank} is not there now.", retry_after_s=1.0)
        raise InvalidRequest(f"data_parallel_rank {rank} is out of range [0, {count}).", field="data_parallel_rank")

    def of(self, members: Sequence[Member]) -> list[int | None]:
        """Return the rank by which `find` finds each of these members; None: none finds it."""
        self.note(members)
        found = self._ranks([member for member in members if not member.is_gone])
        ranks = {id(member): rank for rank, member in found.items()}
        return [ranks.get(id(member)) for member in members]

    def _ranks(self, present: Sequence[Member]) -> dict[int, Member]:
        own = {member.own_rank: member for member in present if member.own_rank is not None}
        places = dict(enumerate(present))
        if self._are_own is None:
            # Use only ranks that are the same by both rules.
            return {
                place: member
                for place, member in places.items()
                if member.own_rank == place or (member.own_rank is None and place not in own)
            }
        return own if self._are_own else places

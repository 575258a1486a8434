"""Roles: which engine cores may and should run a request, by their --kv-role.

A role states a preference for ordinary requests: producers also generate if there is no other engine core. A request with a KV
transfer needs a role that can do it.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tetrad.frontend.engine.facts import KvRole
from tetrad.frontend.request.kv_transfer import KV_TRANSFER_PARAMS
from tetrad.services.errors import UnsupportedArgument


class Transfer(Protocol):
    """A KV transfer, as a value or as a message."""

    @property
    def do_remote_decode(self) -> bool:
        """Whether the prompt's blocks are kept for another engine core."""

    @property
    def do_remote_prefill(self) -> bool:
        """Whether the prompt's blocks are read from another engine core."""


class HasRole(Protocol):
    """An engine core with its role."""

    @property
    def role(self) -> KvRole:
        """Its --kv-role."""


E = TypeVar("E", bound=HasRole)


def can_do(role: KvRole, transfer: Transfer | None) -> bool:
    """Return whether an engine core of this role can run a request with `transfer`; None: without one."""
    if transfer is None:
        return True
    if transfer.do_remote_decode:
        return role.sends
    return role.receives if transfer.do_remote_prefill else role is not KvRole.NONE


def preferred(engines: Sequence[E], transfer: Transfer | None) -> Sequence[E]:
    """Return those of the engine cores that should run a request; all of them if none is better than the others."""
    fitting = [each for each in engines if _fits(each.role, transfer)]
    return fitting or engines


def _fits(role: KvRole, transfer: Transfer | None) -> bool:
    return role is not KvRole.PRODUCER if transfer is None else can_do(role, transfer)


def missing_role(transfer: Transfer | None, rank: int | None = None) -> UnsupportedArgument:
    """Return the error for a KV transfer that no engine core can do, or the one of a rank cannot; it names the option."""
    key, roles = KV_TRANSFER_PARAMS, "producer, consumer or both"
    if transfer is not None and (transfer.do_remote_decode or transfer.do_remote_prefill):
        key += ".do_remote_decode" if transfer.do_remote_decode else ".do_remote_prefill"
        roles = "producer or both" if transfer.do_remote_decode else "consumer or both"
    why = "there is none" if rank is None else f"that of data_parallel_rank {rank} has another role"
    return UnsupportedArgument(f"{key} needs an engine core with --kv-role {roles}; {why}.", field=KV_TRANSFER_PARAMS)

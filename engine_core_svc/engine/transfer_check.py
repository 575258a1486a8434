"""Transfer check: decides whether a request may use KV transfers with this engine core.

A client names the address from which blocks are read. Only addresses that an operator allows (kv-peers) are used: another
server could send any content, which the prefix cache would share with other requests.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tetrad.engine_core_svc.core.kv_transfer import KvTransfer, RemoteBlocks
from tetrad.services.errors import InvalidRequest, Unsupported

_FIELD = "kv_transfer"
_PRODUCERS, _CONSUMERS = ("producer", "both"), ("consumer", "both")


class TransferCheck:
    """The rules of one engine core.

    Args:
        role: none, producer, consumer or both.
        peers: patterns of the addresses of other workers, with * and ?.
    """

    def __init__(self, role: str = "none", peers: Sequence[str] = ()) -> None:
        self._role, self._peers = role, peers

    def check(self, transfer: KvTransfer, *, pools: bool) -> None:
        """Raise Unsupported or InvalidRequest, with the option to change, if a request's transfers are not possible here."""
        if transfer.keeps_blocks and self._role not in _PRODUCERS:
            raise self._refusal("do_remote_decode", "producer")
        if transfer.source is not None and self._role not in _CONSUMERS:
            raise self._refusal("do_remote_prefill", "consumer")
        if pools and (transfer.keeps_blocks or transfer.source is not None):
            raise InvalidRequest("kv_transfer is for requests that generate tokens; this one pools.", field=_FIELD)
        if transfer.source is not None:
            self._check_address(transfer.source)

    def _refusal(self, name: str, role: str) -> Unsupported:
        return Unsupported(
            f"kv_transfer.{name} needs an engine core of kv-role {role} or both; this one has {self._role}.", field=_FIELD
        )

    def _check_address(self, source: RemoteBlocks) -> None:
        address = f"{source.host}:{source.port}" if source.port else source.host
        if not any(fnmatchcase(address, peer) for peer in self._peers):
            raise InvalidRequest(
                f"kv_transfer names the worker {address[:200]!r}; kv-peers allows {', '.join(self._peers) or 'none'}.",
                field=_FIELD,
            )


NO_TRANSFERS = TransferCheck()

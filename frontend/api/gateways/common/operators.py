"""Operators: checks operator permissions of gateway calls by the same rules as HTTP (guard.py)."""

import grpc

from tetrad.frontend.access.grpc_access import presented_keys
from tetrad.frontend.access.guard import Guard


def check_operator(guard: Guard, context: grpc.aio.ServicerContext) -> None:
    """Raise Unauthenticated or PermissionDenied for a caller without operator permissions."""
    guard.check_operator(presented_keys(context.invocation_metadata()), origin=None)

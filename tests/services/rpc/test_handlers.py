"""An interceptor wraps each handler once, also where a call has its own handler."""

from types import SimpleNamespace

import grpc

from tetrad.services.rpc.handlers import WrappingInterceptor, behavior_of, with_behavior


class Loud(WrappingInterceptor):
    def wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        inner = behavior_of(handler)
        return with_behavior(handler, lambda request, context: f"{method}: {inner(request, context)}!")


def handler(answer: str) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(lambda request, context: answer)


async def intercepted(interceptor: Loud, method: str, inner: grpc.RpcMethodHandler | None) -> grpc.RpcMethodHandler | None:
    async def continuation(_: object) -> grpc.RpcMethodHandler | None:
        return inner

    return await interceptor.intercept_service(continuation, SimpleNamespace(method=method))


def answer_of(handler: grpc.RpcMethodHandler) -> str:
    return behavior_of(handler)(None, None)


async def test_a_method_has_one_wrapped_handler_at_every_call():
    interceptor, say, ask = Loud(), handler("said"), handler("asked")

    first, other, again = [
        await intercepted(interceptor, *call) for call in (("/s/Say", say), ("/s/Ask", ask), ("/s/Say", say))
    ]

    assert [answer_of(each) for each in (first, other)] == ["/s/Say: said!", "/s/Ask: asked!"]
    assert again is first


async def test_a_call_that_is_refused_changes_nothing_for_the_next():
    interceptor, served = Loud(), handler("served")

    calls = [await intercepted(interceptor, "/s/Say", each) for each in (served, handler("refused"), served)]

    assert [answer_of(each) for each in calls] == ["/s/Say: served!", "/s/Say: refused!", "/s/Say: served!"]


async def test_a_method_that_the_server_does_not_have_stays_unknown():
    assert await intercepted(Loud(), "/s/None", None) is None

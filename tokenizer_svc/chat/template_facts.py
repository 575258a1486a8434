"""Template facts: finds the features of a chat template in its syntax tree.

Runs in the renderer's process, which adapts conversations to them. Knows Jinja's syntax and the parts of messages; renders
nothing.
"""

from dataclasses import dataclass

from jinja2 import nodes

# Tests that distinguish a text from a list of parts.
_KIND_TESTS = frozenset({"string", "iterable", "sequence", "mapping"})
# Names of a message's reasoning in templates. gpt-oss reads `thinking`.
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class TemplateFacts:
    """The features of a template.

    Attributes:
        reads_parts: whether it loops over a message's content, and so can read parts.
        reads_texts: whether it also reads contents that are texts: it tests for them, writes them or calls their methods.
        knows_tools: whether it writes tools.
        knows_calls: whether it writes calls and their results.
        joins_arguments: whether it writes the arguments of calls unchanged, and so needs JSON text instead of objects.
        knows_developers: whether it has a rule for messages of developers.
        reasoning_field: the field of a message from which it reads reasoning; "reasoning_content" if it reads none.
    """

    reads_parts: bool
    reads_texts: bool
    knows_tools: bool
    knows_calls: bool
    joins_arguments: bool
    knows_developers: bool
    reasoning_field: str


def facts_of(source: str, tree: nodes.Template) -> TemplateFacts:
    """Return the features of a template.

    Args:
        source: text of the template.
        tree: its syntax tree.
    """
    knows_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
    return TemplateFacts(
        reads_parts=any(_is_field(loop.iter, "content") for loop in tree.find_all(nodes.For)),
        reads_texts=_reads_texts(tree),
        knows_tools=knows_tools,
        knows_calls=knows_tools or "tool_calls" in source,
        joins_arguments=_joins_arguments(tree),
        knows_developers="developer" in source,
        reasoning_field=next((name for name in _REASONING_FIELDS if _reads_field(tree, name)), _REASONING_FIELDS[0]),
    )


def _joins_arguments(tree: nodes.Template) -> bool:
    if any(test.name == "string" and _is_field(test.node, "arguments") for test in tree.find_all(nodes.Test)):
        return False
    return any(not isinstance(part, nodes.Filter) and _is_field(part, "arguments") for part in _written(tree))


def _reads_texts(tree: nodes.Template) -> bool:
    methods = [call.node for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Getattr)]
    return (
        any(test.name in _KIND_TESTS and _is_field(test.node, "content") for test in tree.find_all(nodes.Test))
        or any(_is_field(part, "content") for part in _written(tree))
        or any(_is_field(method.node, "content") for method in methods)
    )


def _reads_field(tree: nodes.Template, name: str) -> bool:
    """Return whether a template reads a field of this name, of any object."""
    fields = tree.find_all((nodes.Getattr, nodes.Getitem))
    calls = [call.args[0] for call in tree.find_all(nodes.Call) if call.args]  # message.get("reasoning")
    return any(_is_field(field, name) for field in fields) or any(
        isinstance(argument, nodes.Const) and argument.value == name for argument in calls
    )


def _written(tree: nodes.Template) -> list[nodes.Expr]:
    """Return the expressions that are written or joined with others."""
    written = [part for add in tree.find_all(nodes.Add) for part in (add.left, add.right)]
    written += [part for each in tree.find_all(nodes.Concat) for part in each.nodes]
    return written + [part for each in tree.find_all(nodes.Output) for part in each.nodes]


def _is_field(expression: nodes.Node, name: str) -> bool:
    """Return whether an expression is a field of this name, with or without a filter, or a variable of this name."""
    if isinstance(expression, nodes.Filter) and expression.node is not None:
        return _is_field(expression.node, name)
    if isinstance(expression, nodes.Getattr):
        return expression.attr == name
    if isinstance(expression, nodes.Getitem):
        return isinstance(expression.arg, nodes.Const) and expression.arg.value == name
    return isinstance(expression, nodes.Name) and expression.name == name

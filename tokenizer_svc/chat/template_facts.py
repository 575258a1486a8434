"""Template facts: reads the features of a chat template from its syntax tree, and converts conversations to fit.

Runs in the renderer's process. Knows Jinja's syntax and the parts of messages; renders nothing.
"""

from dataclasses import dataclass

from jinja2 import nodes


@dataclass(frozen=True)
class TemplateFacts:
    """The features of a template.

    Attributes:
        reads_parts: it loops over a message's content, and so reads parts rather than a text.
        knows_tools: it has a place for tools.
        knows_calls: it has a place for calls and their results.
        joins_arguments: it writes the arguments of calls as they are, and so reads JSON text rather than objects.
        knows_developers: it treats messages of developers in a way of its own.
    """

    reads_parts: bool
    knows_tools: bool
    knows_calls: bool
    joins_arguments: bool
    knows_developers: bool


def facts_of(source: str, tree: nodes.Template) -> TemplateFacts:
    """Return the facts of a template.

    Args:
        source: its text.
        tree: the same, parsed.
    """
    knows_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
    return TemplateFacts(
        reads_parts=any(_is_field(loop.iter, "content") for loop in tree.find_all(nodes.For)),
        knows_tools=knows_tools,
        knows_calls=knows_tools or "tool_calls" in source,
        joins_arguments=_joins_arguments(tree),
        knows_developers="developer" in source,
    )


def _joins_arguments(tree: nodes.Template) -> bool:
    if any(test.name == "string" and _is_field(test.node, "arguments") for test in tree.find_all(nodes.Test)):
        return False
    written = [part for add in tree.find_all(nodes.Add) for part in (add.left, add.right)]
    written += [part for each in tree.find_all(nodes.Concat) for part in each.nodes]
    written += [part for each in tree.find_all(nodes.Output) for part in each.nodes]
    return any(not isinstance(part, nodes.Filter) and _is_field(part, "arguments") for part in written)


def _is_field(expression: nodes.Node, name: str) -> bool:
    """Say whether an expression is a field of this name, filtered or not, or a variable that is called so."""
    if isinstance(expression, nodes.Filter) and expression.node is not None:
        return _is_field(expression.node, name)
    if isinstance(expression, nodes.Getattr):
        return expression.attr == name
    if isinstance(expression, nodes.Getitem):
        return isinstance(expression.arg, nodes.Const) and expression.arg.value == name
    return isinstance(expression, nodes.Name) and expression.name == name

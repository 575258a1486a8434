"""Template facts: finds the features of a chat template in its syntax tree.

Runs in the renderer's process, which adapts conversations to them. Knows Jinja's syntax and the parts of messages; renders
nothing.
"""

from dataclasses import dataclass

from jinja2 import nodes


@dataclass(frozen=True)
class TemplateFacts:
    """The features of a template.

    Attributes:
        reads_parts: whether it loops over a message's content, and so needs parts instead of a text.
        knows_tools: whether it writes tools.
        knows_calls: whether it writes calls and their results.
        joins_arguments: whether it writes the arguments of calls unchanged, and so needs JSON text instead of objects.
        knows_developers: whether it has a rule for messages of developers.
    """

    reads_parts: bool
    knows_tools: bool
    knows_calls: bool
    joins_arguments: bool
    knows_developers: bool


def facts_of(source: str, tree: nodes.Template) -> TemplateFacts:
    """Return the features of a template.

    Args:
        source: text of the template.
        tree: its syntax tree.
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
    """Return whether an expression is a field of this name, with or without a filter, or a variable of this name."""
    if isinstance(expression, nodes.Filter) and expression.node is not None:
        return _is_field(expression.node, name)
    if isinstance(expression, nodes.Getattr):
        return expression.attr == name
    if isinstance(expression, nodes.Getitem):
        return isinstance(expression.arg, nodes.Const) and expression.arg.value == name
    return isinstance(expression, nodes.Name) and expression.name == name

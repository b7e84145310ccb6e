"""Declares the parameters of a settings struct on a node, with their descriptions and limits."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter

from spec_vlm_nav.parameters import Parameters, as_parameter
from speculation.settings import Field

S = TypeVar("S", bound=msgspec.Struct)


def settings(node: Node, parameters: Parameters[S]) -> S:
    """Declare the parameters of a settings struct, read once at start, and return what they are set to.

    Raises ValueError, naming the parameter, for a value that the struct refuses.
    """
    return parameters.settings({name: _declare(node, name, field) for name, field in parameters.fields().items()})


def _declare(node: Node, name: str, field: Field) -> Any:
    descriptor = ParameterDescriptor(description=field.description, read_only=True)
    if field.many:
        # rclpy takes an empty list for one of bytes.
        return node.declare_parameter(name, Parameter.Type.STRING_ARRAY, descriptor).value or ()
    default = as_parameter(field.default)
    descriptor.additional_constraints = f"one of {', '.join(field.choices)}" if field.choices else ""
    # A number or a word, such as gamma.
    descriptor.dynamic_typing = field.kind is str and not isinstance(default, str)
    if field.least is not None and field.most is not None:
        if field.kind is float:
            descriptor.floating_point_range = [FloatingPointRange(from_value=field.least, to_value=field.most)]
        else:
            descriptor.integer_range = [IntegerRange(from_value=int(field.least), to_value=int(field.most), step=1)]
    return node.declare_parameter(name, default, descriptor).value

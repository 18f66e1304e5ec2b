"""Context variables that have a value within a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def setting(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give a context variable a value within a block, and its value of before behind it."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)

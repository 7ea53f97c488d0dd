"""Schemas of DataFrames, generated from the types of the records that they hold.

A field's column has the field's name and type: text and literals become strings, numbers longs and
doubles, tuples and lists of text arrays; an optional field has the type of its value.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_SIMPLE: Final[dict[object, DataType]] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
}


def schema_of(record: type, *, only: Iterable[str] | None = None) -> StructType:
    """The schema of a struct or named tuple, or of some of its fields, in their order.

    Raises TypeError if a field has a type that no column can have.
    """
    hints = get_type_hints(record)
    names = hints if only is None else only
    return StructType(
        [StructField(name, _column_type(record, name, hints[name])) for name in names]
    )


def _column_type(record: type, name: str, hint: Any) -> DataType:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal and all(isinstance(value, str) for value in arguments):
        return StringType()
    if origin in (list, tuple) and set(arguments) <= {str, ...}:
        return ArrayType(StringType())
    if origin in (Union, types.UnionType):
        (value,) = (argument for argument in arguments if argument is not type(None))
        return _column_type(record, name, value)
    raise TypeError(f"{record.__name__}.{name} has no column type: {hint}")

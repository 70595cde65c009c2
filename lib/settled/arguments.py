"""Check arguments strictly against the type that a contract declares: a pydantic model or a TypedDict."""

import json
from functools import cache
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError


def check_arguments(arguments_type: Any, text: str) -> None:
    """Raise ValueError with the path of the first field that does not fit. Undeclared fields are refused at every depth."""
    try:
        value = _adapter(arguments_type).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"arguments: {_path(first['loc'])}: {first['msg']}. Nothing was stored.") from None
    if _has_sets(arguments_type):
        twice = _shorter(json.loads(text), _adapter(arguments_type).dump_python(value, mode="json", by_alias=True), ())
        if twice is not None:
            raise ValueError(f"arguments: {_path(twice)}: Items must be unique. Nothing was stored.")


def arguments_schema(arguments_type: Any) -> dict[str, Any]:
    """Return the JSON schema of a declared type. Raises TypeError for a type that cannot be used."""
    try:
        return _adapter(arguments_type).json_schema()
    except (PydanticUserError, SchemaError) as error:
        first = str(error).splitlines()[0]
        raise TypeError(f"arguments_type cannot be used: {first}") from error


def _shorter(given: Any, kept: Any, path: tuple[int | str, ...]) -> tuple[int | str, ...] | None:
    """Return where a list lost items on its way through the type: a set has dropped what was there twice."""
    if isinstance(given, dict) and isinstance(kept, dict):
        parts = ((name, one, kept.get(name)) for name, one in given.items())
    elif isinstance(given, list) and isinstance(kept, list):
        if len(kept) < len(given):
            return path
        parts = ((place, one, kept[place]) for place, one in enumerate(given))
    else:
        return None
    return next((found for name, one, left in parts if (found := _shorter(one, left, (*path, name))) is not None), None)


def _path(parts: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or "the top level"


@cache
def _adapter(arguments_type: Any) -> TypeAdapter[Any]:
    return TypeAdapter(arguments_type)


@cache
def _has_sets(arguments_type: Any) -> bool:
    return '"uniqueItems"' in json.dumps(_adapter(arguments_type).json_schema())

"""Check arguments strictly against the type that a contract declares: a pydantic model or a TypedDict."""

from functools import cache
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError


def check_arguments(arguments_type: Any, text: str) -> None:
    """Raise ValueError with the path of the first field that does not fit. Undeclared fields are refused at every depth."""
    try:
        _adapter(arguments_type).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"arguments: {_path(first['loc'])}: {first['msg']}. Nothing was stored.") from None


def arguments_schema(arguments_type: Any) -> dict[str, Any]:
    """Return the JSON schema of a declared type. Raises TypeError for a type that cannot be used."""
    try:
        return _adapter(arguments_type).json_schema()
    except PydanticUserError as error:
        first = str(error.message).splitlines()[0]
        raise TypeError(f"arguments_type cannot be used: {first}") from error


def _path(parts: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or "the top level"


@cache
def _adapter(arguments_type: Any) -> TypeAdapter[Any]:
    return TypeAdapter(arguments_type)

"""The JSON schema that a model is shown: it says no more than what is checked when the arguments come.

Promise: an object takes its declared fields and no others, at every depth; a field that says nothing about itself is refused
when the tool is declared.
"""

from typing import Any

from settled.arguments import arguments_schema
from settled.core.errors import ConfigurationError

_SAYS_SOMETHING = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})


def strict_schema(arguments_type: Any, what: str) -> dict[str, Any]:
    """Return the closed schema of an object type. Raises ConfigurationError where the type is no object or has an untyped field."""
    schema = arguments_schema(arguments_type)
    closed = _closed(schema, what, "")
    if not isinstance(closed, dict) or closed.get("type") != "object" or "properties" not in closed:
        raise ConfigurationError(f"{what}: arguments_type must be an object with declared fields: a pydantic model or a TypedDict")
    return closed


def open_schema() -> dict[str, Any]:
    """Return the schema of a tool whose contract declares no type: any JSON object."""
    return {"type": "object", "additionalProperties": True}


def with_operation_id(schema: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the schema with the operation ID as one more required field. Raises ConfigurationError where that name is taken."""
    if "operation_id" in schema.get("properties", {}):
        raise ConfigurationError(f"{what}: the arguments have a field 'operation_id' already. Derive the ID in the contract instead")
    field = {
        "type": "string",
        "minLength": 1,
        "maxLength": 500,
        "description": "The name of the business action, e.g. 'order:1042:refund'. The same action has the same name, always.",
    }
    properties = {**schema.get("properties", {}), "operation_id": field}
    return {**schema, "properties": properties, "required": [*schema.get("required", []), "operation_id"]}


def _closed(node: Any, what: str, path: str) -> Any:
    if isinstance(node, list):
        return [_closed(one, what, f"{path}[{place}]") for place, one in enumerate(node)]
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "$defs", "patternProperties"):
            made[key] = {name: _said(_closed(one, what, f"{path}.{name}"), what, f"{path}.{name}") for name, one in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            made[key] = _said(_closed(value, what, path + "[]"), what, path + "[]")
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            made[key] = _closed(value, what, path)
        else:
            made[key] = value  # a default or an example may look like a schema, and is none
    if "properties" in made:
        made["additionalProperties"] = False
    return made


def _said(node: Any, what: str, path: str) -> Any:
    if isinstance(node, dict) and not _SAYS_SOMETHING & node.keys():
        raise ConfigurationError(f"{what}: the field {path.lstrip('.')!r} has no type, so that nothing of it could be checked. Declare one")
    return node

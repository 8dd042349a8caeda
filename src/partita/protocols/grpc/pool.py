"""Message classes from a table, in a descriptor pool of their own.

A program that registers ``inference.*`` in protobuf's default pool dies when another package there, such as
`tritonclient`, does so as well. What is made here is in nobody's way, whichever is imported first.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def message_classes(package: str, messages: str, enums: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the class of each message of a table (its form is told in `schema`), by its name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"partita/{package}.proto", package=package, syntax="proto3"
    )
    places: dict[str, Any] = {}
    for name, fields in _lines(messages):
        outer, _, own = name.rpartition(".")
        message = places[outer].nested_type.add() if outer else file.message_type.add()
        message.name = own
        places[name] = message
        for number, field_name, kind in fields:
            _add_field(message, f".{package}.{name}", package, number, field_name, kind)
    for name, values in enums.items():
        outer, _, own = name.rpartition(".")
        enum = places[outer].enum_type.add() if outer else file.enum_type.add()
        enum.name = own
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in places
    }


def _lines(messages: str) -> Iterator[tuple[str, list[tuple[int, str, list[str]]]]]:
    """Yield (message, fields), a field as (number, name, words of its type)."""
    for line in re.sub(r",\n +", ", ", messages).splitlines():
        if line.strip():
            name, _, rest = line.partition(":")
            words = [field.split() for field in rest.split(",") if field.strip()]
            yield name, [(int(w[0]), w[1], w[2:]) for w in words]


def _add_field(message: Any, full_name: str, package: str, number: int, name: str, kind: list[str]) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    match kind:
        case ["repeated", element]:
            field.label = _Field.LABEL_REPEATED
            _set_type(field, element, package)
        case ["map", value]:
            entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
            entry = message.nested_type.add(name=entry_name)
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
            _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), value, package)
            field.label = _Field.LABEL_REPEATED
            field.type, field.type_name = _Field.TYPE_MESSAGE, f"{full_name}.{entry_name}"
        case ["oneof", choice, one]:
            names = [oneof.name for oneof in message.oneof_decl]
            if choice not in names:
                message.oneof_decl.add(name=choice)
                names.append(choice)
            field.oneof_index = names.index(choice)
            _set_type(field, one, package)
        case ["enum", enum]:
            field.type, field.type_name = _Field.TYPE_ENUM, f".{package}.{enum}"
        case [one]:
            _set_type(field, one, package)
        case _:
            raise AssertionError(f"{full_name}.{name}: {kind}")


def _set_type(field: Any, kind: str, package: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"

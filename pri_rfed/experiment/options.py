"""From a table of a configuration to an object, with every mistake in words.

The classes themselves say which options there are: the parameters of their constructors, with types and defaults. So
nothing is written twice.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

T = TypeVar("T")

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dataclass_type": "a table",
}


@dataclass
class Built(Generic[T]):
    """What came of a table: the object (None where it could not be made), the complete table with its defaults, and
    everything that is wrong, one line each. An object beside errors is made from what is right, so that what depends on
    it can be checked too."""

    value: T | None = None
    table: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def suggestion(word: str, known: Iterable[str]) -> str:
    """'did you mean ...?' where a known word is close, otherwise the known words."""
    known = list(known)
    close = difflib.get_close_matches(word.lower(), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def shown(value: Any) -> str:
    """A value as it would be written in a configuration, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def build(
    section: str, make: Callable[..., T], table: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> Built[T]:
    """`make(**table, **given)`; `given` are arguments that do not come from the configuration."""
    given = {} if given is None else given
    known = {name: types for name, types in parameters(make).items() if name not in given}
    model = _model(make, frozenset(given))
    required = {name for name, (_, default) in known.items() if default is ...}
    built: Built[T] = Built()
    options = dict(table)
    stand_ins: set[str] = set()
    while True:
        # What is wrong is reported and left out, so that its default, or something of its type, shows what else is.
        try:
            values = model.model_validate_json(json.dumps(options, default=str))
            typed = {name: getattr(values, f"option_{name}") for name in known}
            value = make(**typed, **given)
        except ValidationError as error:
            wrong = _group(error)
            for key, parts in wrong.items():
                if key not in stand_ins:
                    built.errors += _in_words(section, key, options, parts, list(known))
            names = set(wrong)
        except ValueError as error:
            named = [(name, text) for name, text in _named_options(str(error), options) if name not in stand_ins]
            built.errors += [f"{section}.{text}" if name else f"{section}: {text}" for name, text in named]
            names = {name for name, _ in named if name}
        else:
            if not stand_ins:
                built.value = value
                built.table = {name: plain(value) for name, value in typed.items() if value is not None}
            return built
        if not names or names & stand_ins:
            return built
        options = {key: value for key, value in options.items() if key not in names}
        for name in names & required:
            options[name] = _stand_in(known[name][0])
            stand_ins.add(name)


@cache
def _model(make: Callable[..., Any], given: frozenset[str]) -> type[BaseModel]:
    """What checks a table against the parameters of a constructor."""
    known = {name: types for name, types in parameters(make).items() if name not in given}
    return create_model(
        "Options",
        __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False),
        # Own names, since pydantic keeps some for itself; the option's name is the alias.
        **{f"option_{n}": (kind, Field(default=default, alias=n)) for n, (kind, default) in known.items()},  # type: ignore[call-overload]
    )


def _stand_in(kind: Any) -> Any:
    """Something of that type: 1, 'a', or a list of nothing."""
    candidates: tuple[Any, ...] = (1, "a", [])
    for value in candidates:
        with contextlib.suppress(ValidationError):
            TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
            return value
    return None


@cache
def parameters(make: Callable[..., Any]) -> Mapping[str, tuple[Any, Any]]:
    """Type and default (... where it is required) of every parameter of a constructor."""
    # A dataclass inherits fields whose types only the modules of its bases know.
    hints = get_type_hints(make.__init__ if inspect.isclass(make) and not is_dataclass(make) else make)
    return MappingProxyType(
        {
            name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in inspect.signature(make).parameters.items()
        }
    )


def plain(value: Any) -> Any:
    """A value as TOML has it: tables, lists, texts, numbers; nothing that is None."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def _group(error: ValidationError) -> dict[str, list[Any]]:
    """The mistakes by the option that they are about."""
    groups: dict[str, list[Any]] = {}
    for part in error.errors():
        groups.setdefault(str(part["loc"][0]), []).append(part)
    return groups


def _named_options(message: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An error of a constructor as (option or nothing, text) pairs: 'owner: a = 1 must ...; b = 2 must ...'."""
    without_owner = re.sub(r"^[\w -]+: (?=\w)", "", message)
    named: list[tuple[str, str]] = []
    for text in without_owner.split("; "):
        word = re.match(r"\w+", text)
        if word and word[0] in options:
            named.append((word[0], text))
        elif named:
            named[-1] = (named[-1][0], f"{named[-1][1]}; {text}")
        else:
            named.append(("", text))
    return named


def _in_words(section: str, key: str, table: Mapping[str, Any], parts: list[Any], known: list[str]) -> list[str]:
    """All that is wrong with one option, one line each."""
    name = f"{section}.{key}"
    if len(parts[0]["loc"]) == 1 and parts[0]["type"] == "extra_forbidden":
        return [f"{name}: unknown key; {suggestion(key, known)}"]
    if len(parts[0]["loc"]) == 1 and parts[0]["type"] == "missing":
        return [f"{name} is missing"]
    if isinstance(table[key], Mapping):
        # Where a table is possible, what is wrong inside of it matters, not that it is no number.
        values = [part for part in parts if part["type"] == "value_error"]
        if values:
            return [f"{name}: {_wanted(part)}" for part in values]
        inside = [part for part in parts if len(part["loc"]) > 2] or parts
        return sorted({f"{name}.{part['loc'][-1]}{_inside(part)}" for part in inside})
    wanted = dict.fromkeys(_wanted(part) for part in parts if part["type"] != "none_required")
    return [f"{name} = {shown(table[key])}: must be {' or '.join(wanted)}"]


def _inside(part: Any) -> str:
    if part["type"] == "unexpected_keyword_argument":
        return ": unknown key"
    if part["type"] == "missing":
        return " is missing"
    return f" = {shown(part['input'])}: must be {_wanted(part)}"


def _wanted(part: Any) -> str:
    if part["type"] == "literal_error":
        return str(part["ctx"]["expected"]).replace("'", '"')
    text: str = part["msg"]
    return _EXPECTED.get(part["type"], text.removeprefix("Input should be ").removeprefix("Value error, "))

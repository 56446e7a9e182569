"""A dictionary that cannot be changed, for fields of frozen dataclasses."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """Read-only and hashable.

    It is a dict and not types.MappingProxyType, because the latter can neither be written as JSON,
    nor copied by dataclasses.asdict, nor pickled.
    """

    def _refuse(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise TypeError("this mapping is read-only; copy it with dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))

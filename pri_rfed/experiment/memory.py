"""What several experiments have in common, loaded or found once for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """What was loaded, prepared or found for one experiment, for others that need the very same.

    Things are forgotten, the longest unused first, once they hold more than `most` bytes together.
    """

    def __init__(self, most: int = 1 << 29):
        self.most = most
        self._things: dict[str, tuple[Any, int]] = {}
        self._news: dict[str, Any] = {}
        self._held = 0

    def recall(self, what: str, of: Any, make: Callable[[], T], size: Callable[[T], int] = lambda thing: 0) -> T:
        """`make()`, or what it made when it was asked for by the same name and the same values, which JSON can hold.
        size: in bytes. What raises is not remembered."""
        key = json.dumps([what, of], sort_keys=True, default=str)
        thing, bytes_ = self._things.pop(key, (None, -1))
        if bytes_ < 0:
            thing = make()
            bytes_ = size(thing)
            self._held += bytes_
            if bytes_ == 0:
                self._news[key] = thing
        self._things[key] = thing, bytes_
        if bytes_ > 0:
            self._forget(key)
        return thing

    def news(self) -> dict[str, Any]:
        """What was made since the last time, and takes no room worth counting: for other processes to `learn`."""
        news, self._news = self._news, {}
        return news

    def learn(self, news: Mapping[str, Any]) -> None:
        """What another process has made need not be made here."""
        self._things |= {key: (thing, 0) for key, thing in news.items()}

    def _forget(self, kept: str) -> None:
        if self._held <= self.most:
            return
        for key in list(self._things):
            if key != kept and (freed := self._things[key][1]) > 0:
                del self._things[key]
                self._held -= freed
            if self._held <= self.most:
                break

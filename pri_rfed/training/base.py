"""What an agent does in a round: local training from w_t, and the event that says what it released."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.events import Event
from pri_rfed.problems.base import Problem
from pri_rfed.randomness import AgentStreams


class Trainer(ABC):
    """A local training. Concrete trainers are frozen dataclasses: their fields are the plan, all of it public.

    Training is batched over a leading agents axis; a deployed client is the same code with one agent.
    """

    name: ClassVar[str]
    """Its key in `TRAINERS` and in configurations."""
    exchanges_gradients: ClassVar[bool] = False
    """Whether the agents of a round must see each other's gradients: possible in a simulation only."""
    leaves_manifold: ClassVar[bool] = False
    """Whether uploads are arrays around the manifold instead of points on it; not every aggregation takes those."""

    @abstractmethod
    def check(self, problem: Problem, records: int) -> list[str]:
        """What is wrong with running this training on an agent with so many records; empty when nothing is."""

    @abstractmethod
    def event(self, problem: Problem, records: int) -> Event:
        """What one local training of an agent with so many records releases. `NonPrivate` where it has no mechanism."""

    @abstractmethod
    def train(self, problem: Problem, w: Array, records: Records, streams: AgentStreams) -> Array:
        """Run it from the base point w [*point_shape] (one for all agents), on the records of A agents.

        Returns the uploads [A, *point_shape]. An agent's row depends on its own records and its own streams alone.
        """

    @abstractmethod
    def gradient_calls(self, records: int) -> int:
        """How many per-record gradients one local training of an agent with so many records evaluates."""

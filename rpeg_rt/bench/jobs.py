"""What a worker can be asked to measure, and what it answers."""

import msgspec

from ir_schema.samples import OperatorCase, Primitive


class Effort(msgspec.Struct, frozen=True, array_like=True):
    """How often something is repeated: for about `seconds`, but `least` to `most` times. By default once."""

    seconds: float = 0.0
    least: int = 1
    most: int = 1

    def shared(self, rounds: int) -> "Effort":
        """What each of `rounds` has of it."""
        return Effort(self.seconds / rounds, -(-self.least // rounds), -(-self.most // rounds))


class Product(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A matrix product (see `ProductSample`)."""

    rows: int
    columns: int
    inner: int
    width: int


class Copy(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A copy of which `nbytes` are read and written together."""

    nbytes: int


class LayerRest(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Norms and residual sums of a layer (see `LayerSample`)."""

    hidden: int
    width: int
    sequences: int
    tokens: int


class Transfer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A communication among all that take part (see `TransferSample`)."""

    primitive: Primitive
    nbytes: int


class Operator(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A whole operator."""

    case: OperatorCase


class Holding(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What a whole operator holds in memory; to watch it slows it down, so it is not timed."""

    case: OperatorCase


class Occupancy(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Nothing: the answer says what the process occupies, and the time until it comes is the controller's."""


Subject = Product | Copy | LayerRest | Transfer | Operator | Holding | Occupancy


class Job(msgspec.Struct, frozen=True, array_like=True):
    """`subject` measured by `ranks` at once. All workers are given the job: they make its groups together."""

    subject: Subject
    ranks: tuple[int, ...]
    effort: Effort


class Result(msgspec.Struct, frozen=True, array_like=True):
    """One worker's figures: seconds and processor seconds of every repetition (none if it took no part),
    the most bytes of live tensors, what its process occupies, and all there is of that memory.
    """

    seconds: tuple[float, ...] = ()
    busy_seconds: tuple[float, ...] = ()
    tensor_bytes: int = 0
    process_bytes: int | None = None
    total_bytes: int = 0

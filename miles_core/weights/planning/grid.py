"""Ranks of a parallel layout, and which shard of the model each of them holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from miles_core.errors import ConfigError
from miles_core.types import Shard


@dataclass(frozen=True, slots=True)
class TrainerGrid:
    """Ranks as Megatron numbers them: tensor parallelism runs fastest, then data, then pipeline parallelism.

    Experts are divided among the same ranks of a stage in their own way: by ``etp`` within each, then by ``ep``; what
    is left replicates them.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        """Check that experts divide the ranks of a stage.

        Raises:
            ConfigError: if they do not, or a size is below 1.
        """
        _check_sizes("trainer", asdict(self))
        if self.tp * self.dp % (self.ep * self.etp):
            raise ConfigError(
                f"trainer: a pipeline stage has tp x dp = {self.tp * self.dp} ranks, which ep x etp = "
                f"{self.ep * self.etp} must divide",
                remedy=f"Choose dp so that tp x dp is a multiple of ep x etp, such as dp={self.ep * self.etp}.",
            )

    @property
    def ranks(self) -> int:
        """``tp x dp x pp``."""
        return self.tp * self.dp * self.pp

    def shard(self, rank: int) -> Shard:
        """What this rank holds."""
        stage, within = divmod(rank, self.tp * self.dp)
        return Shard(
            tp_rank=within % self.tp,
            tp_size=self.tp,
            ep_rank=within // self.etp % self.ep,
            ep_size=self.ep,
            etp_rank=within % self.etp,
            etp_size=self.etp,
            pp_rank=stage,
            pp_size=self.pp,
        )


@dataclass(frozen=True, slots=True)
class EngineGrid:
    """Ranks of one engine as SGLang numbers them: ``tp`` per pipeline stage, of which ``ep`` divide the experts.

    The ``tp / ep`` ranks that have the same experts divide each of them.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        """Check that ``ep`` divides ``tp``.

        Raises:
            ConfigError: if it does not, or a size is below 1.
        """
        _check_sizes("engine", asdict(self))
        if self.tp % self.ep:
            raise ConfigError(
                f"engine: ep = {self.ep} must divide tp = {self.tp}",
                remedy="SGLang's tp counts all ranks of a stage; ep says among how many of them experts are divided.",
            )

    @property
    def ranks(self) -> int:
        """``tp x pp``."""
        return self.tp * self.pp

    def shard(self, rank: int) -> Shard:
        """What this rank holds."""
        stage, within = divmod(rank, self.tp)
        etp = self.tp // self.ep
        return Shard(
            tp_rank=within,
            tp_size=self.tp,
            ep_rank=within // etp,
            ep_size=self.ep,
            etp_rank=within % etp,
            etp_size=etp,
            pp_rank=stage,
            pp_size=self.pp,
        )


def _check_sizes(who: str, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{who}: {name} must be at least 1; got {size}", remedy="Leave out what is not used.")

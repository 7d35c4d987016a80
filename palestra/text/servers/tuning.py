"""How a server learns from the examples of a job."""

from typing import Any, ClassVar, Literal

from palestra.config import Config, PositiveFloat, PositiveInt


class ServerTuningConfig(Config):
    usual: ClassVar[dict[str, Any]] = {
        "num_passes": 1,
        "batch_size": "auto",
        "learning_rate_multiplier": "auto",
        "poll_s": 10.0,
        "timeout_s": 86400.0,
    }

    num_passes: PositiveInt
    """how often a job goes through its examples"""
    batch_size: PositiveInt | Literal["auto"]
    """examples of an opt step; auto: the server decides"""
    learning_rate_multiplier: PositiveFloat | Literal["auto"]
    """by which the server multiplies its own learning rate; auto: the server decides"""
    poll_s: PositiveFloat
    """seconds until the server is asked again how a job is; each pause is half as long again as the one before, up to a
    minute"""
    timeout_s: PositiveFloat
    """seconds after its submission at which a job that is not over is cancelled, and the run ends as failed"""

    def hyperparameters(self) -> dict[str, Any]:
        """Return what of it a job sends."""
        names = ("batch_size", "learning_rate_multiplier")
        return {"n_epochs": self.num_passes, **{name: getattr(self, name) for name in names}}

"""The keys of a model behind a server, what it costs, how it learns there, and what a run may spend."""

import re
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, model_validator

from palestra.config import (
    Config,
    ConfigError,
    ConfigErrorItem,
    NonEmptyStr,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)
from palestra.config.own_modules import admit_outside
from palestra.storage.secrets import may_hold_secret
from palestra.text.servers.ledger import PICO, Cost, Prices


def _plain_url(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    if scheme not in ("http", "https") or not slashes or not re.match(r"[\w\[]", rest):
        raise ValueError("expected a URL that begins with http:// or https://, such as http://127.0.0.1:8000/v1")
    if may_hold_secret(url) or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError("expected a URL without user, password and query: a key belongs into an environment variable")
    return url.rstrip("/")


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,99}", name, re.ASCII):
        raise ValueError("expected the name of an environment variable, such as OPENAI_API_KEY, not the key itself")
    return name


class PricesConfig(Config):
    """What tokens cost, by the million, in any currency; counted in millionths of it, rounded up."""

    usual: ClassVar[Any] = {"input": 0.0, "cached": 0.0, "output": 0.0, "trained": 0.0}

    input: NonNegativeFloat
    """price of a million tokens that a model reads"""
    cached: NonNegativeFloat
    """price of a million tokens of prompts that the server had read before"""
    output: NonNegativeFloat
    """price of a million tokens that a model writes"""
    trained: NonNegativeFloat
    """price of a million tokens that a model is tuned on, by pass"""

    def exact(self) -> Prices:
        """Return the prices of one token each."""
        return Prices(*(_exact(each, PICO // 10**6, ROUND_CEILING) for each in self.model_dump().values()))


class ServerConfig(Config):
    usual: ClassVar[Any] = {
        "url": "http://127.0.0.1:8000/v1",
        "model": "base",
        "key": None,
        "max_concurrent": 16,
        "timeout_s": 600.0,
        "num_attempts": 6,
        "prices": None,
    }

    name: Literal["server"]
    """a model behind a server with OpenAI's interface; answers are asked for by calls"""
    url: Annotated[NonEmptyStr, AfterValidator(_plain_url)]
    """where the interface begins, such as http://127.0.0.1:8000/v1 or https://api.openai.com/v1"""
    model: NonEmptyStr
    """the model's name there"""
    key: Annotated[str, AfterValidator(_variable)] | None
    """the environment variable that has the key, which stands in no file; null: the server asks for none"""
    max_concurrent: PositiveInt
    """the most calls to the server that wait for their answers at one time"""
    timeout_s: PositiveFloat
    """seconds after which a call that has no answer is given up, and made again"""
    num_attempts: PositiveInt
    """how often a call is made in all if the server cannot be reached, is busy or fails; then the run ends"""
    prices: PricesConfig | None
    """what its tokens cost; null: nothing is said, so that a budget of money is refused"""

    @model_validator(mode="after")
    def _check_trusted(self) -> Self:
        """Note a server that the config of a stored run names, and that the user does not trust."""
        if not all(admit_outside(*use) for use in self.uses_outside()):
            raise ConfigError.at("url", f"expected a server that is trusted (--trust), got {self.url}")
        return self

    def uses_outside(self) -> list[tuple[str, str]]:
        what = "prompts" if self.key is None else f"prompts and the key in {self.key}"
        return [(self.url, f"to send it {what}")]

    def exact_prices(self) -> Prices:
        """Return the prices of one token each; 0 where nothing is said."""
        return Prices(0, 0, 0, 0) if self.prices is None else self.prices.exact()


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
        return {"n_epochs": self.num_passes, **self.model_dump(include={"batch_size", "learning_rate_multiplier"})}


class BudgetConfig(Config):
    """What a run may spend on calls and jobs, what kills lost included: none begins that could pass it."""

    usual: ClassVar[Any] = {"tokens": None, "money": None}

    tokens: PositiveInt | None
    """the most tokens that are read, written and trained on behind servers; null: any number"""
    money: PositiveFloat | None
    """the most money, in the currency of the prices; null: any sum"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokens is None and self.money is None:
            raise ConfigError.at("", "expected a number of tokens, a sum of money or both; write budget: null for none")
        return self

    def limit(self) -> Cost:
        """Return the limits as a cost, of which None is no limit."""
        return Cost(self.tokens, None if self.money is None else _exact(self.money, PICO, ROUND_FLOOR))


def price_errors(prices: PricesConfig | None, budget: BudgetConfig | None) -> Iterator[ConfigErrorItem]:
    """Find the fault of a model without prices under a budget of money, at the key `prices`."""
    if budget is not None and budget.money is not None and prices is None:
        yield ConfigErrorItem("prices", "expected prices, because budget.money counts by them, got null")


def _exact(number: float, scale: int, rounding: str) -> int:
    """Return a number times a scale as an integer: by its decimal digits, not by their binary approximation."""
    return int((Decimal(str(number)) * scale).to_integral_value(rounding))

"""The keys of a model behind a server: what is refused, in one line that never has the key."""

import pytest

from palestra.config import Config, ConfigError, check
from palestra.text.servers.config import BudgetConfig, PricesConfig, ServerConfig, price_errors

WHOLE = {"name": "server", **ServerConfig.usual}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("url", "ftp://there/v1", "expected a URL that begins with http:// or https://"),
        ("url", "https://me:hunter2@there/v1", "expected a URL without user, password and query"),
        ("url", "https://there/v1?token=hunter2", "expected a URL without user, password and query"),
        ("key", "sk-hunter2", "expected the name of an environment variable"),
        ("max_concurrent", 0, "expected"),
    ],
)
def test_a_bad_key_is_one_line_without_secrets(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check(WHOLE | {key: value}, ServerConfig)
    [error] = raised.value.errors
    assert (error.path, error.message.startswith(said)) == (key, True)
    assert "hunter2" not in str(raised.value)


def test_a_slash_at_the_end_changes_nothing() -> None:
    assert check(WHOLE | {"url": "https://there/v1/"}, ServerConfig).url == "https://there/v1"


def test_a_budget_of_money_needs_prices_and_a_budget_has_a_limit() -> None:
    money = BudgetConfig(tokens=None, money=2.0)
    assert [each.path for each in price_errors(None, money)] == ["prices"]
    prices: Config = check(PricesConfig.usual, PricesConfig)
    assert isinstance(prices, PricesConfig)
    assert not [*price_errors(prices, money), *price_errors(None, BudgetConfig(tokens=5, money=None))]
    with pytest.raises(ConfigError, match="expected a number of tokens, a sum of money or both"):
        check({"tokens": None, "money": None}, BudgetConfig)

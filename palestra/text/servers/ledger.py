"""What calls and jobs have cost a run, and what those that are out may still cost: exact, and never beyond the budget.

Before an attempt begins, its worst case is reserved; once it is over, what it has cost takes that place. What a kill
has lost counts as the worst case. The ledger itself is kept nowhere: it follows from the lines of the journals, in
which `worst` opens an attempt and `spent` closes it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from palestra.text.models.model import Prompt

PICO = 10**12  # money is counted in such parts of the currency: a price of a millionth per million tokens is 1
MOST = 10**200  # tokens or parts of money in a line of a file: far more than there is, and sums are still floats
PER_MESSAGE, PER_PROMPT = 32, 64  # tokens that a chat template adds: a role and marks around each message; a preamble

Key = tuple[str, int]
"""a call or a job, and the number of its attempt, from 0"""


class BudgetReached(Exception):
    """A call or a job could pass the budget of the run, and nothing is out whose cost would make room for it."""


class Cost(NamedTuple):
    """Tokens, and money in parts of 1/PICO. As a limit: None where there is none."""

    tokens: int | None
    money: int | None

    def plus(self, other: "Cost") -> "Cost":
        return Cost((self.tokens or 0) + (other.tokens or 0), (self.money or 0) + (other.money or 0))

    def within(self, limit: "Cost") -> bool:
        return all(most is None or (own or 0) <= most for own, most in zip(self, limit, strict=True))

    def line(self) -> dict[str, int]:
        """Return the cost as journals have it."""
        return {"tokens": self.tokens or 0, "money": self.money or 0}

    def in_money(self) -> float:
        return (self.money or 0) / PICO


NOTHING = Cost(0, 0)


class Prices(NamedTuple):
    """What one token costs, in parts of 1/PICO."""

    input: int
    cached: int
    output: int
    trained: int


class Usage(NamedTuple):
    """The tokens of a call as a server reports them. input: of the prompt, the cached ones included."""

    input: int
    cached: int
    output: int

    def cost(self, prices: Prices) -> Cost:
        cached = min(self.cached, self.input)
        money = (self.input - cached) * prices.input + cached * prices.cached + self.output * prices.output
        return Cost(self.input + self.output, money)


def worst_of_call(prompt: Prompt, num_answers: int, max_tokens: int, prices: Prices) -> Cost:
    """Return the most that a call can cost."""
    return worst_of_prompt(prompt, prices).plus(worst_of_answers(num_answers, max_tokens, prices))


def worst_of_prompt(prompt: Prompt, prices: Prices) -> Cost:
    """Return the most that it can cost to let a prompt be read: a token stands for at least one byte of text."""
    read = most_read(each.content for each in prompt)
    return Cost(read, read * max(prices.input, prices.cached))


def worst_of_answers(num: int, max_tokens: int, prices: Prices) -> Cost:
    """Return the most that it can cost to let answers be written."""
    return Cost(num * max_tokens, num * max_tokens * prices.output)


def worst_of_job(num_tokens: int, num_passes: int, prices: Prices) -> Cost:
    """Return the most that a job can cost. num_tokens: the most that one pass through its examples may have."""
    return Cost(num_tokens * num_passes, num_tokens * num_passes * prices.trained)


def most_read(contents: Iterable[str]) -> int:
    """Return the most tokens that a chat with these messages can be: a token stands for at least one byte of text."""
    return sum(len(each.encode(errors="surrogatepass")) + PER_MESSAGE for each in contents) + PER_PROMPT


class Ledger:
    """What was spent, and what is reserved.

    limit: of both together. spent: by attempts that are over. reserved: the worst cases of those that are not.
    """

    def __init__(self, limit: Cost) -> None:
        self.limit, self.spent = limit, NOTHING
        self.reserved: dict[Key, Cost] = {}

    def could_begin(self, worst: Cost) -> bool:
        """Tell whether an attempt might still begin, if those that are out cost nothing."""
        return self.spent.plus(worst).within(self.limit)

    def reserve(self, key: Key, worst: Cost) -> bool:
        """Let an attempt begin if it, and all that are out, stay within the limit at worst. Returns whether it did."""
        if not sum_of([self.spent, *self.reserved.values(), worst]).within(self.limit):
            return False
        self.reserved[key] = worst
        return True

    def settle(self, key: Key, cost: Cost) -> None:
        """Count what an attempt has cost, which is over."""
        del self.reserved[key]
        self.spent = self.spent.plus(cost)

    def lose(self, key: Key) -> None:
        """Count the worst case of an attempt of which nothing more is known."""
        self.settle(key, self.reserved[key])

    def take_back(self, key: Key, worst: Cost) -> None:
        """Reserve again what was counted as lost, because the attempt goes on after all."""
        tokens, money = (
            own - lost for own, lost in zip(self.spent.line().values(), worst.line().values(), strict=True)
        )
        self.spent, self.reserved[key] = Cost(tokens, money), worst

    def replay(self, lines: Iterable[Mapping[str, Any]], run: str) -> None:
        """Take over the attempts of a run from the lines of a journal; those without a cost stay reserved.

        Each line has `call` and `attempt`, and one with `worst` the id of its `run`, too: lines of another run, which a
        branch has taken along, cost nothing here.
        """
        for line in lines:
            key = line["call"], line["attempt"]
            if "worst" in line and line["run"] == run:
                self.reserved[key] = Cost(**line["worst"])
            elif "spent" in line and key in self.reserved:
                self.settle(key, Cost(**line["spent"]))

    def lose_all(self) -> None:
        """Count all that is reserved: a kill has lost it."""
        for key in list(self.reserved):
            self.lose(key)


def sum_of(costs: Iterable[Cost]) -> Cost:
    costs = list(costs)
    return Cost(sum(each.tokens or 0 for each in costs), sum(each.money or 0 for each in costs))

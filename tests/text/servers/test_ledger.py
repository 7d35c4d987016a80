"""The ledger: what a run may spend holds for any schedule of calls, kills and usages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.text.models.model import Message
from palestra.text.servers.config import BudgetConfig, PricesConfig
from palestra.text.servers.ledger import (
    NOTHING,
    PICO,
    Cost,
    Ledger,
    Prices,
    Usage,
    sum_of,
    worst_of_call,
    worst_of_job,
)

PROMPT = (Message("user", "é?"),)
prices = st.builds(
    PricesConfig,
    **{name: st.floats(0, 100, allow_nan=False) for name in ("input", "cached", "output", "trained")},
)
budgets = st.tuples(st.one_of(st.none(), st.integers(1, 3000)), st.one_of(st.none(), st.floats(0.0001, 0.2))).filter(
    lambda pair: pair != (None, None)
)
# what happens next: a call begins; the oldest one is answered, with a share of its worst case, or fails for nothing,
# or is lost; the process is killed
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3), st.integers(1, 200)),
        st.tuples(st.just("answer"), st.integers(0, 100), st.integers(0, 100)),
        st.tuples(st.sampled_from(["refuse", "lose", "kill"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@dataclass
class Bank:
    """What the server has really counted, whatever the client knows of it."""

    at: Prices
    owed: Cost = NOTHING
    out: list[tuple[tuple[str, int], int, int]] = field(default_factory=list)

    def charge(self, usage: Usage) -> None:
        self.owed = self.owed.plus(usage.cost(self.at))


@settings(max_examples=150)
@given(limits=budgets, at=prices, schedule=steps)
def test_no_schedule_of_calls_kills_and_usages_passes_the_budget(
    limits: tuple[int | None, float | None], at: PricesConfig, schedule: list[tuple[str, int, int]]
) -> None:
    limit = BudgetConfig(tokens=limits[0], money=limits[1]).limit()
    ledger, bank, lines = Ledger(limit), Bank(at.exact()), list[Mapping[str, Any]]()
    for number, (what, a, b) in enumerate(schedule):
        key = (str(number), 0)
        if what == "ask":
            worst = worst_of_call(PROMPT, a, b, bank.at)
            if ledger.reserve(key, worst):
                lines.append({"run": "me", "call": key[0], "attempt": 0, "worst": worst.line()})
                bank.out.append((key, a, b))
            else:
                assert not sum_of([ledger.spent, *ledger.reserved.values(), worst]).within(limit)
        elif what == "kill":  # all that is out is computed to the last token, and nobody hears of it
            read = worst_of_call(PROMPT, 0, 0, bank.at).tokens or 0
            for _, num, most in bank.out:
                bank.charge(Usage(read, 0, num * most))
            bank.out = []
            ledger = Ledger(limit)
            ledger.replay(
                [{"run": "other", "call": "0", "attempt": 0, "worst": {"tokens": 9, "money": 9}}, *lines], "me"
            )
            ledger.lose_all()
        elif bank.out:
            key, num, most = bank.out.pop(0)
            read = worst_of_call(PROMPT, 0, 0, bank.at).tokens or 0
            usage = {
                "answer": Usage(read * a // 100, read * b // 100, num * most * b // 100),
                "refuse": Usage(0, 0, 0),
                "lose": Usage(read, 0, num * most),
            }[what]
            bank.charge(usage)
            if what == "lose":
                lines.append({"call": key[0], "attempt": 0, "spent": ledger.reserved[key].line()})
                ledger.lose(key)
            else:
                lines.append({"call": key[0], "attempt": 0, "spent": usage.cost(bank.at).line()})
                ledger.settle(key, usage.cost(bank.at))
        assert bank.owed.within(ledger.spent)  # never less than what the server has counted
        assert sum_of([ledger.spent, *ledger.reserved.values()]).within(limit)
        again = Ledger(limit)
        again.replay(lines, "me")
        assert sum_of([again.spent, *again.reserved.values()]) == sum_of([ledger.spent, *ledger.reserved.values()])


def test_a_call_that_does_not_fit_waits_for_those_that_are_out_or_never_begins() -> None:
    ledger = Ledger(Cost(100, None))
    assert ledger.reserve(("a", 0), Cost(60, 5))
    assert not ledger.reserve(("b", 0), Cost(41, 5))
    assert ledger.could_begin(Cost(100, 5))
    ledger.settle(("a", 0), Cost(10, 1))
    assert ledger.reserve(("b", 0), Cost(41, 5))
    assert not ledger.could_begin(Cost(91, 0))
    assert ledger.spent == Cost(10, 1)


def test_money_is_counted_by_decimal_digits() -> None:
    at = PricesConfig(input=0.1, cached=0.025, output=0.4, trained=3.0).exact()
    assert at == Prices(100_000, 25_000, 400_000, 3_000_000)
    assert Usage(1_000_000, 400_000, 500_000).cost(at) == Cost(1_500_000, 270_000_000_000)  # 0.06 + 0.01 + 0.2
    assert BudgetConfig(tokens=None, money=0.3).limit() == Cost(None, 3 * PICO // 10)
    assert PricesConfig(input=1e-7, cached=0.0, output=0.0, trained=0.0).exact().input == 1  # up, never down
    assert worst_of_job(1000, 3, at) == Cost(3000, 9_000_000_000)


def test_the_worst_case_of_a_call_counts_bytes_and_every_answer() -> None:
    worst = worst_of_call((*PROMPT, Message("assistant", "ab")), 2, 10, Prices(1, 3, 7, 0))
    assert worst == Cost((3 + 32) + (2 + 32) + 64 + 20, ((3 + 32) + (2 + 32) + 64) * 3 + 20 * 7)

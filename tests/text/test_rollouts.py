import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from palestra.storage.disk import RunFolderError
from palestra.text.models.model import Message
from palestra.text.rollouts import Rollouts, read_rollouts, verdicts_of
from tests.text.rows import dialogue, row

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), TEXTS, st.sampled_from([None, 0, 1]), st.floats(-9, 9)), max_size=6))
def test_rollouts_come_back_from_a_file_as_they_were(drawn: list[tuple[int, str, int | None, float]]) -> None:
    rows = [
        row(question=question, node=node, answer=text, prompt=(Message("user", text),), verdict=verdict, reward=reward)
        for node, (question, text, verdict, reward) in enumerate(drawn)
    ]
    content = Rollouts(rows).to_parquet()
    assert Rollouts.from_parquet(content).rows == sorted(rows, key=lambda each: (each.question, each.node))
    assert Rollouts(reversed(rows)).to_parquet() == content


def test_log_probabilities_are_kept_to_the_bit_as_floats_of_32_bits() -> None:
    kept = Rollouts.from_parquet(Rollouts([row(log_probs=(-0.125, -(2.0**-20)))]).to_parquet())
    assert kept.rows[0].log_probs == (-0.125, -(2.0**-20))


def test_a_file_may_be_given_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(Rollouts([row()]).to_parquet())
    assert Rollouts.from_parquet(tmp_path / "0.parquet").rows == [row()]
    assert Rollouts.from_parquet(str(tmp_path / "0.parquet")).rows == [row()]


def test_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a Parquet file, got another content"):
        Rollouts.from_parquet(b"PAR1 and more")


def test_dialogues_are_told_apart() -> None:
    rows = dialogue(0, 1, 1) + dialogue(0, 0, 1, rollout=1) + dialogue(1, 1, 0) + dialogue(0, 1, 0, epoch=1)
    found = list(Rollouts(reversed(rows)).dialogues())
    assert [verdicts_of(each)["verifier"] for each in found] == [1, 0, 1, 1]
    assert [[each.node for each in rows] for rows in found] == [[0, 1]] * 4


def forged(*rows: dict[str, Any]) -> bytes:
    return Rollouts(row(**each) for each in rows).to_parquet()


def with_null(name: str) -> bytes:
    table = parquet.read_table(io.BytesIO(forged({})))
    field = table.schema.field(name)
    holes = {"prompt": [[None]], "prompt_ids": [[None]], "log_probs": [[None]]}
    content = io.BytesIO()
    column = pyarrow.array(holes.get(name, [None]), field.type)
    parquet.write_table(table.set_column(table.schema.get_field_index(name), field, column), content)
    return content.getvalue()


def many(num: int) -> bytes:
    schema, content = parquet.read_schema(io.BytesIO(forged({}))), io.BytesIO()
    parquet.write_table(pyarrow.table([pyarrow.nulls(num, each.type) for each in schema], schema=schema), content)
    return content.getvalue()


def unfolding(num: int) -> bytes:
    """Decisions with the same long answer, which the file has once."""
    table, content = (
        parquet.read_table(io.BytesIO(forged({"question": 1}, *({} for _ in range(num - 1))))),
        io.BytesIO(),
    )
    answers = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * num, pyarrow.int32()), ["x" * (1 << 20)])
    at = table.schema.get_field_index("answer")
    parquet.write_table(table.set_column(at, "answer", answers), content, compression="zstd", store_schema=False)
    return content.getvalue()


ENDS = {"returns": {"verifier": 1.0}}
TREE = "expected each node once, after its parent, which ends a round, with 0 or 1 as label and verdict, got "
FORGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "parents of each other": (
        lambda: forged({"parent": 1, **ENDS}, {"node": 1, "parent": 0, **ENDS}),
        f"{TREE}question 0, roll-out 0, node 0, parent 1",
    ),
    "its own parent": (lambda: forged({"parent": 0}), f"{TREE}question 0, roll-out 0, node 0, parent 0"),
    "an orphan": (lambda: forged({"node": 9, "parent": 7}), f"{TREE}question 0, roll-out 0, node 9, parent 7"),
    "a node twice": (lambda: forged({}, {}), TREE),
    "another verdict": (lambda: forged({"verdict": 5}), f"{TREE}.* verdict 5"),
    "another label": (lambda: forged({"label": -3}), f"{TREE}.* label -3"),
    "a reward that is no number": (lambda: forged({"reward": math.nan}), "expected finite rewards, got nan of "),
    "returns that are no numbers": (
        lambda: forged({"returns": {"verifier": math.inf}}),
        "expected finite rewards, got ",
    ),
    "returns of others": (lambda: forged({"returns": {"x": 1.0}}), TREE),
    "a tree whose dialogues are far longer than it is": (
        lambda: forged(*({"node": node, "parent": node - 1 if node else None, **ENDS} for node in range(2000))),
        "GiB of memory for a file of .* bytes, got one that takes ",
    ),
    "more rows than the file may hold": (lambda: many(2_000_000), "GiB of memory for a file of .* bytes, got "),
    "an answer that unfolds": (
        lambda: unfolding(2000),
        "GiB of memory for a file of .* bytes, got one that takes ",
    ),
    **{
        f"null as {name}": (
            lambda name=name: with_null(name),
            f"expected something as {name} of each decision, got null",
        )
        for name in ("epoch", "answer", "prompt", "prompt_ids", "log_probs", "reward")
    },
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_rollouts_are_refused_in_a_line_that_names_the_file(case: str) -> None:
    make, told = FORGED[case]
    content, began = make(), time.process_time()
    with pytest.raises(RunFolderError, match=f"^0.parquet is damaged: .*{told}") as raised:
        read_rollouts(content, "0.parquet")
    assert len(str(raised.value).splitlines()) == 1
    assert time.process_time() - began < 5

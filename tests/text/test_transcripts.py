"""Transcripts are YAML that gives back what was said, whatever that is."""

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.text.models.model import Message
from palestra.text.rollouts import Rollouts, transcripts
from tests.text.rows import dialogue, row

TEXTS = st.one_of(
    st.text(max_size=8), st.text("a \n\t#:-|'\"{\\", max_size=10), st.sampled_from(["y", "null", "1.0", "", "- a", "~"])
)


@settings(max_examples=150)
@given(TEXTS, TEXTS, TEXTS)
def test_a_reader_of_yaml_gets_the_texts_as_they_were_written(about: str, read: str, answer: str) -> None:
    prompt = (Message("system", read), Message("user", "é"))
    written = transcripts(Rollouts([row(about=about, prompt=prompt, answer=answer, role=answer)]), True)
    [found] = yaml.load(written, yaml.CSafeLoader)
    assert found["about"] == about
    assert found["answers"][0]["prompt"] == [{"system": read}, {"user": "é"}]
    assert found["answers"][0]["answer"] == answer
    assert found["rewards"] == {answer: 1.0}


def test_each_answer_of_a_tree_stands_once_above_what_goes_on_from_it() -> None:
    ends = [
        row(node=node, parent=0, round=1, answer=answer, verdict=verdict, returns={"prover": verdict, "verifier": 1.0})
        for node, answer, verdict in ((1, "yes", 1), (4, "no", 0))
    ]
    tree = [row(role="prover", player="p", answer="k", verdict=None, reward=0.5), *ends]
    text = transcripts(Rollouts(tree), with_prompts=False)
    assert "".join(text.partition("  tree:\n")[1:]) == (
        "  tree:\n"
        "  - answers:\n"
        "    - round: 0\n      node: 0\n      role: prover\n      player: p\n"
        '      answer: "k"\n      reward: 0.5\n'
        "    then:\n"
        "    - answers:\n"
        "      - round: 1\n        node: 1\n        role: verifier\n        player: verifier\n"
        '        answer: "yes"\n        verdict: accept\n        reward: 1.0\n'
        "      rewards: {prover: 1, verifier: 1.0}\n"
        "    - answers:\n"
        "      - round: 1\n        node: 4\n        role: verifier\n        player: verifier\n"
        '        answer: "no"\n        verdict: reject\n        reward: 1.0\n'
        "      rewards: {prover: 0, verifier: 1.0}\n"
    )
    prompts = yaml.safe_load(transcripts(Rollouts(tree), with_prompts=True))[0]["tree"][0]["then"][1]["answers"]
    assert prompts[0]["prompt"] == [{each.role: each.content} for each in tree[2].prompt]


def test_an_answer_of_several_lines_stands_as_it_was_written() -> None:
    rows = dialogue(3, 1, 0, rollout=2)
    long = row(answer="Because\n  k is\n\nthere", node=1, attempts=2, stop="length", verdict=None)
    text = transcripts(Rollouts([row(answer="k", verdict=None), long]), with_prompts=False)
    assert "    answer: |-\n      Because\n        k is\n\n      there\n    attempts: 2\n    stop: length\n" in text
    assert "prompt" not in text
    [found] = yaml.safe_load(transcripts(Rollouts(rows), with_prompts=False))
    assert (found["question"], found["rollout"], found["label"]) == (3, 2, "reject")
    assert found["rewards"] == {"prover": 1.0, "verifier": -1.0}
    assert found["answers"][1]["verdict"] == "accept"

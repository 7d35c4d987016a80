"""No release reads runs of the one before by luck: their keys stay, or the format rises."""

import pytest

from palestra.storage.facts import RUN_FORMAT
from tests.storage.run_keys import (
    CHANGELOG,
    FIRST,
    LISTING,
    Listing,
    Models,
    last_release,
    models,
    read,
    renewed,
    written,
)

BEFORE: Models = {"dqn.Config": {"gamma": frozenset({"float"}), "net": frozenset({"mlp.Config", "null"})}}


def test_the_listing_is_what_palestra_reads_today() -> None:
    listing = read(LISTING.read_text())
    now = models()
    renewed(listing, RUN_FORMAT, now, last_release(CHANGELOG.read_text()))
    assert (listing.format, listing.models) == (RUN_FORMAT, now), "python -m tests.storage.run_keys writes it anew"
    assert read(written(listing)) == listing


def test_a_key_of_each_kind_of_file_is_listed() -> None:
    now = models()
    assert now["algorithms.dqn.DQNConfig"]["max_grad_norm"] == {"float", "null"}
    assert now["run.sections.ExecutionConfig"].keys() >= {"device", "num_threads"}
    assert now["storage.facts.RunFacts"]["set_in_python"] == {"list of str"}
    assert "storage.records_file.RecordsThen" in now["storage.manifest.Manifest"]["records"]


@pytest.mark.parametrize(
    ("now", "line"),
    [
        ({"dqn.Config": {"gamma": frozenset({"float"})}}, "dqn.Config.net is gone"),
        ({"dqn.Config": BEFORE["dqn.Config"] | {"tau": frozenset({"float"})}}, "dqn.Config has the new key tau"),
        (
            {"dqn.Config": BEFORE["dqn.Config"] | {"net": frozenset({"mlp.Config"})}},
            "dqn.Config.net no longer holds null",
        ),
        ({}, "dqn.Config is gone"),
    ],
)
def test_after_a_release_what_older_runs_lack_needs_a_new_format(now: Models, line: str) -> None:
    listing = Listing(2, FIRST, BEFORE)
    assert renewed(listing, 2, now, FIRST) == Listing(2, FIRST, now)
    with pytest.raises(ValueError, match=rf"1\.0\.0 has runs of format 2 .*:\n  {line}\n"):
        renewed(listing, 2, now, "1.0.0")
    risen = renewed(listing, 3, now, "1.0.0")
    assert risen == Listing(3, "1.0.0", now)
    assert renewed(risen, 3, BEFORE, "1.0.0") == Listing(3, "1.0.0", BEFORE), "no release has format 3 yet"


def test_after_a_release_what_older_runs_never_had_needs_none() -> None:
    now = {
        "dqn.Config": BEFORE["dqn.Config"] | {"net": BEFORE["dqn.Config"]["net"] | {"cnn.Config"}},
        "cnn.Config": {"size": frozenset({"int"})},
    }
    assert renewed(Listing(2, FIRST, BEFORE), 2, now, "1.0.0") == Listing(2, FIRST, now)


def test_the_last_release_is_the_first_version_in_the_changelog() -> None:
    assert last_release("# Changelog\n\n## [Unreleased]\n") == FIRST
    assert last_release("## [Unreleased]\n\n## [1.1.0] - 2027-01-02\n\n## [1.0.0] - 2026-12-01\n") == "1.1.0"

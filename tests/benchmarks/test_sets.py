from benchmarks.sets import boards, rows


def test_the_boards_are_those_of_opt_steps() -> None:
    points = [board["points"] for board in boards()[:3]]
    assert all(each.shape == (256, 20, 3) for each in points)
    assert 2.0 < sum(float((each >= 0).all(-1).sum(1).float().mean()) for each in points) / 3 < 6.0


def test_both_layouts_are_measured() -> None:
    assert [row.contender for row in rows(1, 0.0, 1)] == ["packed", "packed"]

"""The README's picture of a game shows the game's own boards."""

from docs.draw_game import PICTURE, boards


def test_the_picture_shows_the_boards_of_the_game() -> None:
    assert boards() == [[(0, 4), (1, 1), (3, 0)], [(2, 1), (3, 0)], [(2, 3)]]
    picture = PICTURE.read_text()
    for board in boards():
        for point in board:
            assert picture.count(str(point)) == sum(point in other for other in boards())

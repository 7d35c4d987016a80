"""`quotes_what_is_there`: do the quotations of a message stand in what its writer had read? No model is asked."""

from typing import Literal

from palestra.config import Config
from palestra.games.dialogue.protocol import Protocol
from palestra.text.analyses.analysis import Analysis, Dialogue, Judgement, messages_of

MARKS = {'"': '"', "\N{LEFT DOUBLE QUOTATION MARK}": "\N{RIGHT DOUBLE QUOTATION MARK}", "\xab": "\xbb"}
LOW = "\N{DOUBLE LOW-9 QUOTATION MARK}"  # German, which one of either upper marks ends
ENDS_OF_LOW = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
TRAILING = ".,;:!?"  # may stand inside the marks though it belongs to the sentence around


class QuotesConfig(Config):
    name: Literal["quotes_what_is_there"]
    """the share of the quotations of a message that stand in what its writer had read, but for blanks"""

    def build(self, protocol: Protocol) -> "Quotes":
        return Quotes(self, protocol)


class Quotes(Analysis):
    """The share of right quotations in each message that has any; its words are those that are wrong.

    A writer has read the fields of the question that it sees, what others have said to it, and its own messages before.
    """

    def judge(self, dialogue: Dialogue) -> list[Judgement]:
        found = []
        for row in messages_of(dialogue):
            if quotes := quotations(row.answer):
                read = _plain("\n".join(each.content for each in row.prompt if each.role != "system"))
                plain = {each: _plain(each) for each in quotes}
                wrong = [each for each in quotes if not (plain[each] in read or plain[each].rstrip(TRAILING) in read)]
                words = f"not there: {'; '.join(wrong)}" if wrong else None
                found.append(Judgement(row, 1 - len(wrong) / len(quotes), words))
        return found


def quotations(text: str) -> list[str]:
    """Return the texts in double quotation marks and in backticks, in order, without blank ones.

    An opening mark without a closing one quotes nothing. Inside backticks other marks are text.
    """
    found, place = [], 0
    while place < len(text):
        begin, mark = place, text[place]
        while mark == "`" and text[place : place + 1] == "`":
            place += 1
        if mark == "`":
            end = text.find("`" * (place - begin), place)
            after = end + place - begin
        else:
            place += 1
            ends = ENDS_OF_LOW if mark == LOW else MARKS.get(mark, "")
            end = min((at for each in ends if (at := text.find(each, place)) >= 0), default=-1)
            after = end + 1
        if end < 0:
            continue
        quoted = text[place:end]
        if mark == "`" and place - begin >= 3:
            quoted = quoted[quoted.find("\n") + 1 :]  # the line of a fence may name a language
        found += [quoted] if quoted.strip() else []
        place = after
    return found


def _plain(text: str) -> str:
    return " ".join(text.split())

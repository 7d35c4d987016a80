from palestra.config import NonEmptyStr, UserConfig
from palestra.recording import Recorder
from palestra.recording.recorders import numbers_of


class Alarms(Recorder):
    """Writes a line for every record in which a number lies above a limit."""

    class Config(UserConfig):
        number: NonEmptyStr
        """the number that is watched, as players/host/loss"""
        limit: float
        """a line is written above this"""

    def open(self, run):
        self.file = (run.folder / "alarms.txt").open("w")
        return 0  # records that are filed already: none, the file is written anew

    def write(self, number, record):
        value = numbers_of(record).get(self.config.number)
        if value is not None and value > self.config.limit:
            self.file.write(f"record {number}, opt step {record['opt_steps']}: {value:g}\n")

    def flush(self):
        self.file.flush()

    def close(self, end):
        self.file.write(f"{end.status}\n")
        self.file.close()

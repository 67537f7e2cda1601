"""The scripts' own count of samples and their own stopwatch; the tests compare the measurement with them."""

import json
import os
import time


class Tally:
    """Samples and seconds of each step, as the script sees them."""

    def __init__(self):
        self.samples, self.seconds = [], []
        self.pending, self._spent_s = 0, 0.0
        self._since_s = None

    def start(self):
        """Start or resume the training's clock."""
        self._since_s = time.perf_counter()

    def stop(self):
        """Stop the clock for an interruption: validation, a checkpoint, the end of an epoch."""
        self._spent_s += time.perf_counter() - self._since_s
        self._since_s = None

    def leave_epoch(self):
        """Stop the clock and drop the time since the last step: it belongs to no step."""
        self._since_s, self._spent_s = None, 0.0

    def seen(self, samples):
        self.pending += samples

    def step(self):
        """Record a step; it has no time if the clock was not started."""
        now_s = time.perf_counter()
        self.samples.append(self.pending)
        self.seconds.append(None if self._since_s is None else self._spent_s + now_s - self._since_s)
        self.pending, self._spent_s, self._since_s = 0, 0.0, now_s

    def write(self):
        rank = os.environ.get("RANK", "0")
        with open(f"tally.{rank}.json", "w") as file:
            json.dump({"samples": self.samples, "seconds": self.seconds}, file)


def think(seconds=0.008):
    """Make a step long enough to be timed, without using a core."""
    time.sleep(seconds)

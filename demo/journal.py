"""Journals: what one process has seen, one JSON object a line.

The books are balanced from the journals of the processes on both sides of the queue, so each line
is written before anybody else can act on what it says.
"""

import json


class Writer:
    def __init__(self, path):
        self.file = open(path, "a", buffering=1)

    def write(self, record):
        self.file.write(json.dumps(record) + "\n")


class Reader:
    """Follows a journal that another process writes."""

    def __init__(self, path):
        path.touch()
        self.file = open(path)
        self.rest = ""

    def new(self):
        """The records written since the last call."""
        *lines, self.rest = (self.rest + self.file.read()).split("\n")
        return [json.loads(line) for line in lines]

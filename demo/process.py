"""The demo's processes: started together, watched, and never left behind."""

import os
import signal
import subprocess
import sys
import threading

PATIENCE = 30  # seconds for a process to end when told to


class Failed(Exception):
    """A process ended in a way it should not have; the message ends with what it printed."""


class Process:
    def __init__(self, name, command, env, logs):
        self.name = name
        self.log = logs / f"{name}.log"
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen(
                list(map(str, command)),
                env=env,
                stdin=subprocess.PIPE,  # closed when we end, see end_with_parent()
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end the others in our own order
            )

    def has_ended(self):
        return self.popen.poll() is not None

    def last_line(self):
        return (self.log.read_text(errors="replace").splitlines() or [""])[-1]

    def check(self):
        """Raises if it ended with an error."""
        if self.popen.poll() not in (None, 0):
            text = self.log.read_text(errors="replace")[-2000:].strip()
            raise Failed(f"{self.name} ended with exit code {self.popen.returncode}:\n{text}")

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def ask_to_stop(self):
        if not self.has_ended():
            self.popen.send_signal(signal.SIGTERM)

    def wait(self):
        """Waits for its orderly end."""
        try:
            self.popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {PATIENCE} s of SIGTERM") from None
        self.check()


def end_with_parent():
    """For our Python processes: however the demo ends, SIGKILL included, this process ends too."""

    def watch():
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

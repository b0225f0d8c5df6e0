"""The exceptions people see. Each carries one sentence: what is wrong, where, and what to do.

    TunerError
    ├── UserError        exit 2   the input, the machine or the setup; nothing was launched for it
    │   └── NotMeasured  exit 2   a figure was asked for that the data at hand cannot give
    ├── EngineError      exit 3   an engine did not start, died or answered wrongly
    ├── GateFailed       exit 1   everything was measured, and a gate did not hold
    └── Interrupted      exit 130 a signal ended the work; the message says how to go on

Anything else that escapes is a bug in tuner and keeps its traceback.
"""


class TunerError(Exception):
    """Base of every error that is shown as a sentence and not as a traceback."""

    exit_code = 2


class UserError(TunerError):
    """The workload, a path, a flag or the setup of this machine is wrong."""

    exit_code = 2


class NotMeasured(UserError):
    """The data at hand does not define the figure that was asked for."""

    exit_code = 2


class EngineError(TunerError):
    """An engine process or server failed; the message holds the engine's own root-cause line."""

    exit_code = 3


class GateFailed(TunerError):
    """The measurement is complete and a condition the user set did not hold."""

    exit_code = 1


class Interrupted(TunerError):
    """A signal ended work that can be resumed; the message says how."""

    exit_code = 130

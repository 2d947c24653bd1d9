"""What was logged during a test."""

import logging

# loggers of what sets a prefill graph up; building a model may log more
SET_UP = "sglang.srt.model_executor", "sglang.srt.prefill_graph"


def texts(caplog, words="", loggers="sglang", level=logging.NOTSET):
    """Messages with `words` in them, of loggers whose names begin so, from `level` on. Libraries
    warn once a process, in whichever test comes first."""
    found = [one for one in caplog.records if one.levelno >= level and one.name.startswith(loggers)]
    return [one.getMessage() for one in found if words in one.getMessage()]


def warnings(caplog, words="", loggers="sglang"):
    return texts(caplog, words, loggers, logging.WARNING)

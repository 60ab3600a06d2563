"""The files of a training: settings, log, attempts, checkpoints and rows, in one directory with one writer."""

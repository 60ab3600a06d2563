"""The files of a training run: settings, log, attempts, checkpoints and rows, in one directory with one writer."""

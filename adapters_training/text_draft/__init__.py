"""Distillation of draft models for language models alone: `config` what may be set, `model` what learns, `training`
the loop, `run` from settings to a folder, `command` the command line. `pair` trains the drafts that see."""

"""Early-exit adapters for any target: `config` what may be set, `batches` data as the target reads it, `target` its
hidden states, `training` the loop, `measuring` what came of it, `command` the command line."""

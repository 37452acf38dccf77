"""What all commands share: the store, options, output, exit codes and the `--json` shapes."""

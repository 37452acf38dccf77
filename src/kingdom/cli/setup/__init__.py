"""Commands that set up a realm and check it: init, config, doctor."""

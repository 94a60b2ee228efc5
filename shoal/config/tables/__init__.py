"""The tables of the TOML file, one module each: `[run]` is run.py, `[reward.judge]` judge.py."""

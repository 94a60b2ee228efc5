#!/usr/bin/env bash
# Runs a command, and starts it again when it fails, as `shoal train` and containers do. Ends with it after SIGTERM.
#
#   keep.sh COMMAND...
#
# It restarts the command five times, after pauses that double from 1 s to 30 s. The count begins again once the command
# has lasted for five minutes.
set -uo pipefail
# The command gets a process group of its own. Slurm signals the group of this script, which passes a signal on once.
set -m
max_restarts=5 restarts=0 told=''
trap 'told=1; [[ -z ${child:-} ]] || kill -TERM "$child" 2>/dev/null' TERM
while true; do
    began=$SECONDS
    "$@" &
    child=$!
    # One that was told to end before this has a command that was not.
    [[ -z $told ]] || kill -TERM "$child" 2>/dev/null
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"  # A signal ends this before the command has ended.
    done
    wait "$child"
    code=$?
    [[ -z $told ]] && ((code)) || exit "$code"
    ((SECONDS - began < 300)) || restarts=0
    if ((restarts == max_restarts)); then
        echo "keep.sh: exit code $code after $restarts restarts, so the command is not started again: $*" >&2
        exit "$code"
    fi
    pause=$((1 << restarts > 30 ? 30 : 1 << restarts))
    restarts=$((restarts + 1))
    echo "keep.sh: exit code $code; restart $restarts of $max_restarts in $pause s" >&2
    sleep "$pause" &
    child=$!
    wait "$child"
    [[ -z $told ]] || exit "$code"
done
